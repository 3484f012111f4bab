#include <torch/library.h>

#include "cholesky_inverse.h"
#include "cholesky_inverse_cpu.h"

namespace mmlaplace {
namespace {

// For larger matrices LAPACK is faster.
constexpr int64_t kLargest = 256;

template <class T>
at::Tensor invert_small(const at::Tensor& mats, double ridge) {
  at::Tensor out = at::empty_like(mats);
  cholesky::invert_small(mats.data_ptr<T>(), mats.size(0), mats.size(-1), ridge, out.data_ptr<T>());
  return out;
}

at::Tensor forward(const at::Tensor& mat, double ridge) {
  cholesky::check(mat);
  if (mat.numel() == 0) return at::empty(mat.sizes(), mat.options());
  const at::Tensor mats = cholesky::flatten(mat);
  const at::Tensor out = mats.size(-1) > kLargest            ? cholesky::by_factor(mats, ridge)
                         : mats.scalar_type() == at::kDouble ? invert_small<double>(mats, ridge)
                                                             : invert_small<float>(mats, ridge);
  return out.view(mat.sizes()).to(mat.scalar_type());
}

}  // namespace
}  // namespace mmlaplace

TORCH_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("cholesky_inverse", mmlaplace::forward);
}
