#include "../common/tensor.h"

#include <utility>
#include <vector>

#include "../common/cpu/subnormals.h"
#include "../common/strided.h"
#include "newton_schulz_inverse.h"

namespace mmlaplace {

// Rows of a product whose sums are in registers at once.
constexpr int64_t kRows = 4;

}  // namespace mmlaplace

#define MMLAPLACE_KERNELS "../../newton_schulz_inverse/newton_schulz_inverse_vector.h"
#include "../common/cpu/cpu_dispatch.h"

namespace mmlaplace {
namespace {

// Rows of m values, and of zeros up to whole vectors. There are zero rows up to whole tiles.
template <class T>
struct Padded {
  int64_t m, stride, size;

  explicit Padded(int64_t m) : m(m) {
    const int64_t lanes = vector_bytes() / sizeof(T);
    stride = ceil_div(m, lanes) * lanes;
    size = ceil_div(m, kRows) * kRows * stride;
  }

  void copy_in(const T* mat, T* target) const {
    for (int64_t i = 0; i < m; ++i) std::copy_n(mat + i * m, m, target + i * stride);
  }
};

template <class T>
Tensor invert_small(const Tensor& mats, int64_t num_iters, double ridge, const Tensor& scales) {
  Tensor out = empty(mats.sizes(), mats);
  const Padded<T> padded(mats.size(-1));
  const int64_t m = padded.m, stride = padded.stride, size = padded.size;
  host::parallel_for(mats.size(0), 1, [&](int64_t begin, int64_t end) {
    const SubnormalsAsZeros zeros_here;
    std::vector<T> memory(4 * size);
    T* const ridged = memory.data();
    T* const buffers[] = {ridged + size, ridged + 2 * size, ridged + 3 * size};
    for (int64_t index = begin; index < end; ++index) {
      std::fill(memory.begin(), memory.end(), T(0));
      padded.copy_in(mats.data_ptr<T>() + index * m * m, ridged);
      for (int64_t i = 0; i < m; ++i) ridged[i * stride + i] += static_cast<T>(ridge);
      const T* scale = scales.defined() ? scales.data_ptr<T>() + index : nullptr;
      int which;
      MMLAPLACE_FOR_CPU(invert(ridged, scale, buffers, m, stride, num_iters, &which));
      T* target = out.data_ptr<T>() + index * m * m;
      for (int64_t i = 0; i < m; ++i) std::copy_n(buffers[which] + i * stride, m, target + i * m);
    }
  });
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
                         ? invert_small<double>(mats, num_iters, ridge, scales)
                         : invert_small<float>(mats, num_iters, ridge, scales);
  return out.view(mat.sizes()).to(mat.scalar_type());
}

template <class T>
Tensor start_limits(const Tensor& mats, bool halve) {
  Tensor limits = empty({2, mats.size(0)}, mats);
  const Padded<T> padded(mats.size(-1));
  host::parallel_for(mats.size(0), 1, [&](int64_t begin, int64_t end) {
    const SubnormalsAsZeros zeros_here;
    std::vector<T> memory(2 * padded.size + padded.stride);
    for (int64_t index = begin; index < end; ++index) {
      padded.copy_in(mats.data_ptr<T>() + index * padded.m * padded.m, memory.data());
      T* const limit = limits.data_ptr<T>() + index;
      MMLAPLACE_FOR_CPU(start_limits(memory.data(), memory.data() + padded.size, padded.m,
                                     padded.stride, halve, limit, limit + mats.size(0)));
    }
  });
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
  const Tensor limits =
      is_double ? start_limits<double>(mats, halve) : start_limits<float>(mats, halve);
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
