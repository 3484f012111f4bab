// The inverse of small matrices on a CPU, without ATen.
#pragma once

#include <algorithm>
#include <vector>

#include "../common/cpu/subnormals.h"
#include "../common/strided.h"

namespace mmlaplace {

// Rows of a product whose sums are in registers at once.
constexpr int64_t kRows = 4;
// Sweeps that are made at once.
constexpr int64_t kBlock = 8;

}  // namespace mmlaplace

#define MMLAPLACE_KERNELS "../../cholesky_inverse/cholesky_inverse_vector.h"
#include "../common/cpu/cpu_dispatch.h"

namespace mmlaplace {
namespace cholesky {

// The inverses of `count` contiguous matrices (m, m), see cholesky_inverse.h.
template <class T>
void invert_small(const T* mats, int64_t count, int64_t m, double ridge, T* out) {
  const int64_t lanes = vector_bytes() / sizeof(T);
  // Whole vectors and tiles. What is in the padding changes nothing.
  const int64_t rows = ceil_div(m, kRows) * kRows, stride = ceil_div(m, lanes) * lanes;
  const int64_t grain = 1 + 200'000 / (m * m * m);  // at least about ten microseconds
  host::parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    const SubnormalsAsZeros zeros_here;
    std::vector<T> memory((rows + 2 * kBlock) * stride + kRows);
    T *const matrix = memory.data(), *const panel = matrix + rows * stride;
    for (int64_t index = begin; index < end; ++index) {
      const T* const mat = mats + index * m * m;
      T* const target = out + index * m * m;
      for (int64_t i = 0; i < m; ++i) {
        std::fill_n(matrix + i * stride + m, stride - m, T(0));
        for (int64_t j = i; j < m; ++j)
          matrix[i * stride + j] = T(0.5) * mat[i * m + j] + T(0.5) * mat[j * m + i];
        matrix[i * stride + i] += static_cast<T>(ridge);
      }
      bool positive;
      MMLAPLACE_FOR_CPU(sweep(matrix, panel, panel + kBlock * stride, m, stride, &positive));
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = i; j < m; ++j)
          target[i * m + j] = target[j * m + i] =
              positive ? -matrix[i * stride + j] : std::numeric_limits<T>::quiet_NaN();
      }
    }
  });
}

}  // namespace cholesky
}  // namespace mmlaplace
