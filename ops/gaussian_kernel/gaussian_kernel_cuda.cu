#include "../common/tensor.h"

#include "../common/cuda/pairwise_cuda.h"

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("gaussian_kernel",
               MMLAPLACE_KERNEL(mmlaplace::cuda::pairwise_forward<mmlaplace::Gaussian>));
  library.impl("_gaussian_kernel_backward",
               MMLAPLACE_KERNEL(mmlaplace::cuda::pairwise_backward<mmlaplace::Gaussian>));
}
