#include "../common/tensor.h"

#include "../common/cuda/launch.h"
#include "pooled_landmarks_passes.h"

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("pooled_landmarks",
               MMLAPLACE_KERNEL(mmlaplace::pooled::forward<mmlaplace::cuda::Gpu>));
  library.impl("_pooled_landmarks_backward",
               MMLAPLACE_KERNEL(mmlaplace::pooled::backward<mmlaplace::cuda::Gpu>));
}
