#include "../common/tensor.h"

#include "../common/cuda/launch.h"
#include "landmark_attention.h"

namespace mmlaplace {

// In sources of their own, nystrom_attention_{laplacian,gaussian}_cuda.cu.
extern template struct nystrom::Attention<cuda::Gpu, Laplacian>;
extern template struct nystrom::Attention<cuda::Gpu, Gaussian>;

}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  using mmlaplace::cuda::Gpu;
  library.impl("nystrom_attention", MMLAPLACE_KERNEL(mmlaplace::nystrom::forward<Gpu>));
  library.impl("_landmark_attention",
               MMLAPLACE_KERNEL(mmlaplace::nystrom::landmark_attention<Gpu>));
  library.impl("_nystrom_attention_backward", MMLAPLACE_KERNEL(mmlaplace::nystrom::backward<Gpu>));
}
