#include "../newton_schulz_inverse/newton_schulz_inverse_cpu.h"

#include "operators.h"

namespace mmlaplace {
namespace operators {

void NewtonSchulzInverse::compute(const Inputs& inputs, float* out) const {
  const Input &mat = inputs[0], &scale = inputs[1];
  const int64_t count = count_matrices(name, mat.shape), m = mat.shape.back();
  if (scale.data) check(name, "scale", scale.shape, {mat.shape.begin(), mat.shape.end() - 2});
  if (count > 0 && m > 0) {
    newton_schulz::invert_small(mat.data, count, m, num_iters, ridge, scale.data, out);
  }
}

}  // namespace operators
}  // namespace mmlaplace
