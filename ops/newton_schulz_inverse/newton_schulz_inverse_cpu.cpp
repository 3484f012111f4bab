#include <ATen/Parallel.h>
#include <torch/library.h>

#include <utility>
#include <vector>

#include "../common/strided.h"
#include "newton_schulz_inverse.h"

namespace mmlaplace {

// Rows of a product whose sums are in registers at once.
constexpr int64_t kRows = 3;
// Four matrices of floats of this size are a megabyte. For larger ones BLAS is faster.
constexpr int64_t kLargest = 256;

}  // namespace mmlaplace

#define MMLAPLACE_KERNELS "../../newton_schulz_inverse/newton_schulz_inverse_vector.h"
#include "../common/cpu/cpu_dispatch.h"

namespace mmlaplace {
namespace {

template <class T>
at::Tensor invert_small(const at::Tensor& mats, int64_t num_iters, double ridge) {
  at::Tensor out = at::empty_like(mats);
  const int64_t m = mats.size(-1);
  const int64_t lanes = vector_bytes() / sizeof(T);
  const int64_t stride = ceil_div(m, lanes) * lanes, size = ceil_div(m, kRows) * kRows * stride;
  at::parallel_for(0, mats.size(0), 1, [&](int64_t begin, int64_t end) {
    std::vector<T> memory(4 * size);
    T* const ridged = memory.data();
    T* const buffers[] = {ridged + size, ridged + 2 * size, ridged + 3 * size};
    for (int64_t index = begin; index < end; ++index) {
      const T* mat = mats.data_ptr<T>() + index * m * m;
      std::fill(memory.begin(), memory.end(), T(0));
      for (int64_t i = 0; i < m; ++i) {
        std::copy_n(mat + i * m, m, ridged + i * stride);
        ridged[i * stride + i] += static_cast<T>(ridge);
      }
      int which;
      MMLAPLACE_FOR_CPU(invert(ridged, buffers, m, stride, num_iters, &which));
      T* target = out.data_ptr<T>() + index * m * m;
      for (int64_t i = 0; i < m; ++i) std::copy_n(buffers[which] + i * stride, m, target + i * m);
    }
  });
  return out;
}

at::Tensor forward(const at::Tensor& mat, int64_t num_iters, double ridge) {
  newton_schulz::check(mat, num_iters);
  if (mat.numel() == 0) return at::empty(mat.sizes(), mat.options());
  const at::Tensor mats = newton_schulz::flatten(mat);
  at::Tensor out = mats.size(-1) > kLargest ? newton_schulz::by_matmul(mats, num_iters, ridge)
                   : mats.scalar_type() == at::kDouble
                       ? invert_small<double>(mats, num_iters, ridge)
                       : invert_small<float>(mats, num_iters, ridge);
  return out.view(mat.sizes()).to(mat.scalar_type());
}

}  // namespace
}  // namespace mmlaplace

TORCH_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("newton_schulz_inverse", mmlaplace::forward);
}
