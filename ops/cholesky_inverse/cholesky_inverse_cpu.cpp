#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "../common/strided.h"
#include "cholesky_inverse.h"

namespace mmlaplace {

// Rows of a product whose sums are in registers at once.
constexpr int64_t kRows = 4;
// Sweeps that are made at once.
constexpr int64_t kBlock = 8;
// For larger matrices LAPACK is faster.
constexpr int64_t kLargest = 256;

}  // namespace mmlaplace

#define MMLAPLACE_KERNELS "../../cholesky_inverse/cholesky_inverse_vector.h"
#include "../common/cpu/cpu_dispatch.h"

namespace mmlaplace {
namespace {

template <class T>
at::Tensor invert_small(const at::Tensor& mats, double ridge) {
  at::Tensor out = at::empty_like(mats);
  const int64_t m = mats.size(-1), lanes = vector_bytes() / sizeof(T);
  // Whole vectors and tiles. What is in the padding changes nothing.
  const int64_t rows = ceil_div(m, kRows) * kRows, stride = ceil_div(m, lanes) * lanes;
  const int64_t grain = 1 + 200'000 / (m * m * m);  // at least about ten microseconds
  at::parallel_for(0, mats.size(0), grain, [&](int64_t begin, int64_t end) {
    std::vector<T> memory((rows + 2 * kBlock) * stride + kRows);
    T *const matrix = memory.data(), *const panel = matrix + rows * stride;
    for (int64_t index = begin; index < end; ++index) {
      const T* const mat = mats.data_ptr<T>() + index * m * m;
      T* const target = out.data_ptr<T>() + index * m * m;
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
