#include "../common/tensor.h"

#include <algorithm>
#include <limits>

#include "newton_schulz_inverse.h"
#include "newton_schulz_inverse_device.cuh"
#include "small_matrix_cuda.h"

namespace mmlaplace {
namespace {

template <class T>
Tensor invert(const Tensor& mats, int64_t num_iters, double ridge, const Tensor& scales) {
  Tensor out = empty(mats.sizes(), mats);
  const int64_t m = mats.size(-1);
  const auto steps =
      static_cast<int>(std::min<int64_t>(num_iters, std::numeric_limits<int>::max()));
  cuda::with_layout("newton_schulz_inverse", m, [&](auto grid, auto tile) {
    constexpr int Grid = decltype(grid)::value, Tile = decltype(tile)::value;
    cuda::launch("newton_schulz_inverse", device::newton_schulz_kernel<Grid, Tile, T>, mats,
                 Grid * Grid, device::newton_schulz_bytes<Grid, Tile, T>(), mats.data_ptr<T>(),
                 scales.defined() ? scales.data_ptr<T>() : nullptr, out.data_ptr<T>(),
                 static_cast<int>(m), steps, static_cast<T>(ridge),
                 std::numeric_limits<T>::epsilon(), std::numeric_limits<T>::infinity());
  });
  return out;
}

Tensor forward(const Tensor& mat, int64_t num_iters, double ridge,
               const OptionalTensor& start_scale) {
  newton_schulz::check(mat, num_iters, ridge, start_scale);
  const cuda::Guard guard(mat);
  if (mat.numel() == 0) return empty(mat.sizes(), mat);
  const Tensor mats = flat_matrices(mat);
  const Tensor scales = newton_schulz::flat_scales(start_scale, mats);
  const Tensor out = mats.scalar_type() == ScalarType::Double
                         ? invert<double>(mats, num_iters, ridge, scales)
                         : invert<float>(mats, num_iters, ridge, scales);
  return out.view(mat.sizes()).to(mat.scalar_type());
}

template <class T>
Tensor scales_of(const Tensor& mats, double factor, bool halve, bool per_batch) {
  const int64_t m = mats.size(-1), batch = mats.size(0);
  Tensor limits = empty({2, batch}, mats);
  cuda::with_layout("newton_start_scale", m, [&](auto grid, auto tile) {
    constexpr int Grid = decltype(grid)::value, Tile = decltype(tile)::value;
    cuda::launch("newton_start_scale", device::start_limits_kernel<Grid, Tile, T>, mats,
                 Grid * Grid, device::start_limits_bytes<Grid, Tile, T>(), mats.data_ptr<T>(),
                 limits.data_ptr<T>(), static_cast<int>(m), batch, halve);
  });
  if (per_batch) limits = limits.amax(1, /*keepdim=*/true);  // NaN if one is
  Tensor scales = empty({batch}, mats);
  device::start_scale_kernel<T>
      <<<static_cast<unsigned int>(ceil_div(batch, 128)), 128, 0, cuda::current_stream()>>>(
          limits.data_ptr<T>(), limits.data_ptr<T>() + limits.size(1), scales.data_ptr<T>(), batch,
          per_batch ? 0 : 1, static_cast<T>(factor));
  MMLAPLACE_CUDA_CHECK(cudaGetLastError());
  return scales;
}

Tensor start_scale(const Tensor& mat, double factor, bool halve, bool per_batch) {
  newton_schulz::check_start(mat, factor);
  const cuda::Guard guard(mat);
  const Tensor mats = flat_matrices(mat);
  const auto shape = mat.sizes().slice(0, mat.dim() - 2);
  if (mat.numel() == 0) return empty(shape, mats);
  const Tensor scales = mats.scalar_type() == ScalarType::Double
                            ? scales_of<double>(mats, factor, halve, per_batch)
                            : scales_of<float>(mats, factor, halve, per_batch);
  return scales.view(shape);
}

}  // namespace
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("newton_schulz_inverse", MMLAPLACE_KERNEL(mmlaplace::forward));
  library.impl("_newton_start_scale", MMLAPLACE_KERNEL(mmlaplace::start_scale));
}
