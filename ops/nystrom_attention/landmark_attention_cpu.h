// What attention with landmarks of its own needs besides the passes over tokens, on a CPU without
// ATen: the means of cells and the kernel of the landmarks with each other.
#pragma once

#include "nystrom_attention_cpu.h"

#include "../pooled_landmarks/pooled_landmarks_cpu.h"

namespace mmlaplace {
namespace nystrom {

// k(L, L) of landmarks (B, heads, m, d) as contiguous (B, heads, m, m).
template <class Metric, class T>
void kernel_of_landmarks(const Sizes& sizes, const T* landmarks, double bandwidth, T* mats) {
  const int64_t m = sizes.marks, d = sizes.dims;
  const int64_t stride = round_up(m, lanes_of<T>()), padded = round_up(d, lanes_of<T>());
  const T exponent = static_cast<T>(Metric::exponent(bandwidth) / std::log(2.0));
  host::parallel_for(sizes.batch_heads(), 1, [&](int64_t begin, int64_t end) {
    const SubnormalsAsZeros zeros_here;
    Arrays<T> memory({padded * stride, padded * kTile, stride * kTile});
    T *marks = memory.take(padded * stride), *rows = memory.take(padded * kTile);
    T* tile = memory.take(stride * kTile);
    for (int64_t head = begin; head < end; ++head) {
      const T* of_head = landmarks + head * m * d;
      transposed_in(of_head, d, m, d, marks, stride);
      for (int64_t first = 0; first < m; first += kTile) {
        const int64_t count = std::min(kTile, m - first);
        transposed_in(of_head + first * d, d, count, d, rows, kTile);
        MMLAPLACE_FOR_CPU(
            kernel_tile<Metric, T>(rows, marks, stride, count, m, d, exponent, nullptr, tile));
        for (int64_t a = 0; a < m; ++a) {
          std::copy_n(tile + a * kTile, count, mats + (head * m + a) * m + first);
        }
      }
    }
  });
}

}  // namespace nystrom
}  // namespace mmlaplace
