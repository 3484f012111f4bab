#include "../common/tensor.h"

#include "../common/cuda/launch.h"
#include "linear_attention_passes.h"

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  using mmlaplace::cuda::Gpu;
  library.impl("linear_attention", MMLAPLACE_KERNEL(mmlaplace::linear::forward<Gpu>));
  library.impl("_linear_attention_backward", MMLAPLACE_KERNEL(mmlaplace::linear::backward<Gpu>));
}
