#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <limits>

#include "newton_schulz_inverse.h"
#include "newton_schulz_inverse_device.cuh"
#include "small_matrix_cuda.h"

namespace mmlaplace {
namespace {

template <class T>
at::Tensor invert(const at::Tensor& mats, int64_t num_iters, double ridge,
                  const at::Tensor& scales) {
  at::Tensor out = at::empty_like(mats);
  const int64_t m = mats.size(-1);
  const bool done = cuda::with_layout(m, [&](auto grid, auto tile) {
    constexpr int Grid = decltype(grid)::value, Tile = decltype(tile)::value;
    return cuda::launch(device::newton_schulz_kernel<Grid, Tile, T>, mats, Grid * Grid,
                        device::newton_schulz_bytes<Grid, Tile, T>(), mats.data_ptr<T>(),
                        scales.defined() ? scales.data_ptr<T>() : nullptr, out.data_ptr<T>(),
                        static_cast<int>(m), static_cast<int>(num_iters), static_cast<T>(ridge),
                        std::numeric_limits<T>::epsilon(), std::numeric_limits<T>::infinity());
  });
  return done ? out : newton_schulz::by_matmul(mats, num_iters, ridge, scales);
}

at::Tensor forward(const at::Tensor& mat, int64_t num_iters, double ridge,
                   const newton_schulz::OptionalTensor& start_scale) {
  newton_schulz::check(mat, num_iters, start_scale);
  const c10::cuda::CUDAGuard guard(mat.device());
  if (mat.numel() == 0) return at::empty(mat.sizes(), mat.options());
  const at::Tensor mats = newton_schulz::flatten(mat);
  const at::Tensor scales = newton_schulz::flatten_scales(start_scale, mats);
  const at::Tensor out = mats.scalar_type() == at::kDouble
                             ? invert<double>(mats, num_iters, ridge, scales)
                             : invert<float>(mats, num_iters, ridge, scales);
  return out.view(mat.sizes()).to(mat.scalar_type());
}

template <class T>
at::Tensor scales_of(const at::Tensor& mats, double factor, bool halve, bool per_batch) {
  const int64_t m = mats.size(-1), batch = mats.size(0);
  at::Tensor limits = at::empty({2, batch}, mats.options());
  const bool done = cuda::with_layout(m, [&](auto grid, auto tile) {
    constexpr int Grid = decltype(grid)::value, Tile = decltype(tile)::value;
    return cuda::launch(device::start_limits_kernel<Grid, Tile, T>, mats, Grid * Grid,
                        device::start_limits_bytes<Grid, Tile, T>(), mats.data_ptr<T>(),
                        limits.data_ptr<T>(), static_cast<int>(m), batch, halve);
  });
  if (!done) limits = newton_schulz::start_limits_by_matmul(mats, halve);
  if (per_batch) limits = limits.amax(1, /*keepdim=*/true);  // NaN if one is
  at::Tensor scales = at::empty({batch}, mats.options());
  device::start_scale_kernel<T><<<static_cast<unsigned int>(ceil_div(batch, 128)), 128, 0,
                                  c10::cuda::getCurrentCUDAStream()>>>(
      limits.data_ptr<T>(), limits.data_ptr<T>() + limits.size(1), scales.data_ptr<T>(), batch,
      per_batch ? 0 : 1, static_cast<T>(factor));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return scales;
}

at::Tensor start_scale(const at::Tensor& mat, double factor, bool halve, bool per_batch) {
  newton_schulz::check(mat);
  const c10::cuda::CUDAGuard guard(mat.device());
  const at::Tensor mats = newton_schulz::flatten(mat);
  const auto shape = mat.sizes().slice(0, mat.dim() - 2);
  if (mat.numel() == 0) return at::empty(shape, mats.options());
  const at::Tensor scales = mats.scalar_type() == at::kDouble
                                ? scales_of<double>(mats, factor, halve, per_batch)
                                : scales_of<float>(mats, factor, halve, per_batch);
  return scales.view(shape);
}

}  // namespace
}  // namespace mmlaplace

TORCH_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("newton_schulz_inverse", mmlaplace::forward);
  library.impl("_newton_start_scale", mmlaplace::start_scale);
}
