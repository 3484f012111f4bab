#include "../common/tensor.h"

#include "newton_schulz_inverse.h"
#include "newton_schulz_inverse_cpu.h"

namespace mmlaplace {
namespace {

template <class T>
Tensor invert_all(const Tensor& mats, int64_t num_iters, double ridge, const Tensor& scales) {
  Tensor out = empty(mats.sizes(), mats);
  newton_schulz::invert_small(mats.data_ptr<T>(), mats.size(0), mats.size(-1), num_iters, ridge,
                              scales.defined() ? scales.data_ptr<T>() : nullptr, out.data_ptr<T>());
  return out;
}

Tensor forward(const Tensor& mat, int64_t num_iters, double ridge,
               const OptionalTensor& start_scale) {
  newton_schulz::check(mat, num_iters, ridge, start_scale);
  check_rows("newton_schulz_inverse", mat.size(-1), kMostRowsOnCpu, "CPU");
  if (mat.numel() == 0) return empty(mat.sizes(), mat);
  const Tensor mats = flat_matrices(mat);
  const Tensor scales = newton_schulz::flat_scales(start_scale, mats);
  const Tensor out = mats.scalar_type() == ScalarType::Double
                         ? invert_all<double>(mats, num_iters, ridge, scales)
                         : invert_all<float>(mats, num_iters, ridge, scales);
  return out.view(mat.sizes()).to(mat.scalar_type());
}

template <class T>
Tensor limits_of(const Tensor& mats, bool halve) {
  Tensor limits = empty({2, mats.size(0)}, mats);
  newton_schulz::start_limits(mats.data_ptr<T>(), mats.size(0), mats.size(-1), halve,
                              limits.data_ptr<T>());
  return limits;
}

template <class T>
Tensor scales_of(Tensor limits, int64_t count, double factor, bool per_batch) {
  if (per_batch) limits = limits.amax(1, /*keepdim=*/true);  // of the batch; NaN if one is
  const int64_t step = per_batch ? 0 : 1;
  Tensor scales = empty({count}, limits);
  const T *row_sums = limits.data_ptr<T>(), *bounds = row_sums + limits.size(1);
  for (int64_t i = 0; i < count; ++i) {
    scales.data_ptr<T>()[i] =
        newton_schulz::start_scale(row_sums[i * step], bounds[i * step], static_cast<T>(factor));
  }
  return scales;
}

Tensor start_scale(const Tensor& mat, double factor, bool halve, bool per_batch) {
  newton_schulz::check_start(mat, factor);
  check_rows("newton_start_scale", mat.size(-1), kMostRowsOnCpu, "CPU");
  const Tensor mats = flat_matrices(mat);
  const auto shape = mat.sizes().slice(0, mat.dim() - 2);
  if (mat.numel() == 0) return empty(shape, mats);
  const bool is_double = mats.scalar_type() == ScalarType::Double;
  const Tensor limits = is_double ? limits_of<double>(mats, halve) : limits_of<float>(mats, halve);
  const Tensor scales = is_double ? scales_of<double>(limits, mats.size(0), factor, per_batch)
                                  : scales_of<float>(limits, mats.size(0), factor, per_batch);
  return scales.view(shape);
}

}  // namespace
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("newton_schulz_inverse", MMLAPLACE_KERNEL(mmlaplace::forward));
  library.impl("_newton_start_scale", MMLAPLACE_KERNEL(mmlaplace::start_scale));
}
