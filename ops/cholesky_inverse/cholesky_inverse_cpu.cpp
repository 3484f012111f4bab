#include "../common/tensor.h"

#include "cholesky_inverse.h"
#include "cholesky_inverse_cpu.h"

namespace mmlaplace {
namespace {

template <class T>
Tensor invert_small(const Tensor& mats, double ridge) {
  Tensor out = empty(mats.sizes(), mats);
  cholesky::invert_small(mats.data_ptr<T>(), mats.size(0), mats.size(-1), ridge, out.data_ptr<T>());
  return out;
}

Tensor forward(const Tensor& mat, double ridge) {
  cholesky::check(mat, ridge);
  check_rows("cholesky_inverse", mat.size(-1), kMostRowsOnCpu, "CPU");
  if (mat.numel() == 0) return empty(mat.sizes(), mat);
  const Tensor mats = flat_matrices(mat);
  const Tensor out = mats.scalar_type() == ScalarType::Double ? invert_small<double>(mats, ridge)
                                                              : invert_small<float>(mats, ridge);
  return out.view(mat.sizes()).to(mat.scalar_type());
}

}  // namespace
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("cholesky_inverse", MMLAPLACE_KERNEL(mmlaplace::forward));
}
