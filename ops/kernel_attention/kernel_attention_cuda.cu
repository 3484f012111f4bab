#include "../common/tensor.h"

#include "../common/cuda/launch.h"
#include "kernel_attention.h"

namespace mmlaplace {

// In sources of their own, kernel_attention_{laplacian,gaussian}_cuda.cu.
extern template struct exact::Attention<cuda::Gpu, Laplacian>;
extern template struct exact::Attention<cuda::Gpu, Gaussian>;

}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  using mmlaplace::cuda::Gpu;
  library.impl("kernel_attention", MMLAPLACE_KERNEL(mmlaplace::exact::forward<Gpu>));
  library.impl("_kernel_attention_backward", MMLAPLACE_KERNEL(mmlaplace::exact::backward<Gpu>));
}
