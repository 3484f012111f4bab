#include "../common/tensor.h"

#include "../common/cuda/pairwise_cuda.h"

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("laplacian_kernel",
               MMLAPLACE_KERNEL(mmlaplace::cuda::pairwise_forward<mmlaplace::Laplacian>));
  library.impl("_laplacian_kernel_backward",
               MMLAPLACE_KERNEL(mmlaplace::cuda::pairwise_backward<mmlaplace::Laplacian>));
}
