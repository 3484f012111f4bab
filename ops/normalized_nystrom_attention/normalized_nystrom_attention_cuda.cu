#include "../common/tensor.h"

#include "../common/cuda/launch.h"
#include "normalized_nystrom_attention.h"

namespace mmlaplace {

// In sources of their own, normalized_nystrom_attention_{laplacian,gaussian}_cuda.cu.
extern template struct normalized_nystrom::Attention<cuda::Gpu, Laplacian>;
extern template struct normalized_nystrom::Attention<cuda::Gpu, Gaussian>;

}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  using mmlaplace::cuda::Gpu;
  library.impl("normalized_nystrom_attention",
               MMLAPLACE_KERNEL(mmlaplace::normalized_nystrom::forward<Gpu>));
  library.impl("_normalized_nystrom_attention_backward",
               MMLAPLACE_KERNEL(mmlaplace::normalized_nystrom::backward<Gpu>));
}
