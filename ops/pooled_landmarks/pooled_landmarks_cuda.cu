#include <torch/library.h>

#include "../common/cuda/launch.h"
#include "pooled_landmarks_passes.h"

TORCH_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("pooled_landmarks", mmlaplace::pooled::forward<mmlaplace::cuda::Gpu>);
  library.impl("_pooled_landmarks_backward", mmlaplace::pooled::backward<mmlaplace::cuda::Gpu>);
}
