#include "../common/cuda/launch.h"
#include "kernel_attention_passes.h"

template struct mmlaplace::exact::Attention<mmlaplace::cuda::Gpu, mmlaplace::Gaussian>;
