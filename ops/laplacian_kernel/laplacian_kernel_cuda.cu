#include <torch/library.h>

#include "../common/cuda/pairwise_cuda.h"

TORCH_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("laplacian_kernel", mmlaplace::cuda::pairwise_forward<mmlaplace::Laplacian>);
  library.impl("_laplacian_kernel_backward",
               mmlaplace::cuda::pairwise_backward<mmlaplace::Laplacian>);
}
