// The Newton–Schulz inverse of small matrices on a CPU, and its start, without ATen.
#pragma once

#include <algorithm>
#include <vector>

#include "../common/cpu/subnormals.h"
#include "newton_schulz_inverse_rules.h"

namespace mmlaplace {

// Rows of a product whose sums are in registers at once.
constexpr int64_t kRows = 4;

}  // namespace mmlaplace

#define MMLAPLACE_KERNELS "../../newton_schulz_inverse/newton_schulz_inverse_vector.h"
#include "../common/cpu/cpu_dispatch.h"

namespace mmlaplace {
namespace newton_schulz {

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

// The inverses of `count` contiguous matrices (m, m). scales (count) has alpha, or is null.
template <class T>
void invert_small(const T* mats, int64_t count, int64_t m, int64_t num_iters, double ridge,
                  const T* scales, T* out) {
  const Padded<T> padded(m);
  const int64_t stride = padded.stride, size = padded.size;
  host::parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    const SubnormalsAsZeros zeros_here;
    std::vector<T> memory(4 * size);
    T* const ridged = memory.data();
    T* const buffers[] = {ridged + size, ridged + 2 * size, ridged + 3 * size};
    for (int64_t index = begin; index < end; ++index) {
      std::fill(memory.begin(), memory.end(), T(0));
      padded.copy_in(mats + index * m * m, ridged);
      for (int64_t i = 0; i < m; ++i) ridged[i * stride + i] += static_cast<T>(ridge);
      const T* scale = scales ? scales + index : nullptr;
      int which;
      MMLAPLACE_FOR_CPU(invert(ridged, scale, buffers, m, stride, num_iters, &which));
      T* target = out + index * m * m;
      for (int64_t i = 0; i < m; ++i) std::copy_n(buffers[which] + i * stride, m, target + i * m);
    }
  });
}

// The limits (2, count) that start_scale() takes: largest row sums, and bounds.
template <class T>
void start_limits(const T* mats, int64_t count, int64_t m, bool halve, T* limits) {
  const Padded<T> padded(m);
  host::parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    const SubnormalsAsZeros zeros_here;
    std::vector<T> memory(2 * padded.size + padded.stride);
    for (int64_t index = begin; index < end; ++index) {
      padded.copy_in(mats + index * m * m, memory.data());
      T* const limit = limits + index;
      MMLAPLACE_FOR_CPU(start_limits(memory.data(), memory.data() + padded.size, m, padded.stride,
                                     halve, limit, limit + count));
    }
  });
}

}  // namespace newton_schulz
}  // namespace mmlaplace
