#include "../cholesky_inverse/cholesky_inverse_cpu.h"

#include "inverse.h"
#include "operators.h"

namespace mmlaplace {
namespace operators {

void invert(const float* mats, int64_t count, int64_t m, double ridge, float* out) {
  if (count > 0 && m > 0) cholesky::invert_small(mats, count, m, ridge, out);
}

void CholeskyInverse::compute(const Inputs& inputs, float* out) const {
  const Input& mat = inputs[0];
  invert(mat.data, count_matrices(name, mat.shape), mat.shape.back(), ridge, out);
}

}  // namespace operators
}  // namespace mmlaplace
