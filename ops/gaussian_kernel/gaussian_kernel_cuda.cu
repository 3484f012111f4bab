#include <torch/library.h>

#include "../common/cuda/pairwise_cuda.h"

TORCH_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("gaussian_kernel", mmlaplace::cuda::pairwise_forward<mmlaplace::Gaussian>);
  library.impl("_gaussian_kernel_backward",
               mmlaplace::cuda::pairwise_backward<mmlaplace::Gaussian>);
}
