#include "../common/tensor.h"

#include <limits>

#include "../newton_schulz_inverse/small_matrix_cuda.h"
#include "cholesky_inverse.h"
#include "cholesky_inverse_device.cuh"

namespace mmlaplace {
namespace {

template <class T>
Tensor invert(const Tensor& mats, double ridge) {
  Tensor out = empty(mats.sizes(), mats);
  const int64_t m = mats.size(-1);
  cuda::with_small_layout("cholesky_inverse", m, [&](auto, auto tile) {
    constexpr int Tile = decltype(tile)::value;
    cuda::launch("cholesky_inverse", device::cholesky_inverse_kernel<Tile, T>, mats,
                 device::kCholeskyThreads, device::cholesky_bytes<Tile, T>(), mats.data_ptr<T>(),
                 out.data_ptr<T>(), static_cast<int>(m), static_cast<T>(ridge),
                 std::numeric_limits<T>::infinity(), std::numeric_limits<T>::quiet_NaN());
  });
  return out;
}

Tensor forward(const Tensor& mat, double ridge) {
  cholesky::check(mat, ridge);
  const cuda::Guard guard(mat);
  if (mat.numel() == 0) return empty(mat.sizes(), mat);
  const Tensor mats = flat_matrices(mat);
  const Tensor out = mats.scalar_type() == ScalarType::Double ? invert<double>(mats, ridge)
                                                              : invert<float>(mats, ridge);
  return out.view(mat.sizes()).to(mat.scalar_type());
}

}  // namespace
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("cholesky_inverse", MMLAPLACE_KERNEL(mmlaplace::forward));
}
