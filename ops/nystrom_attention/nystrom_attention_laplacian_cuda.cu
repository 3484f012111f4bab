#include "../common/cuda/launch.h"
#include "nystrom_attention_passes.h"

template struct mmlaplace::nystrom::Attention<mmlaplace::cuda::Gpu, mmlaplace::Laplacian>;
