#include "../common/cuda/launch.h"
#include "normalized_nystrom_attention_passes.h"

template struct mmlaplace::normalized_nystrom::Attention<mmlaplace::cuda::Gpu,
                                                         mmlaplace::Laplacian>;
