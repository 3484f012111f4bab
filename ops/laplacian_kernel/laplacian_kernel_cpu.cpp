#include <torch/library.h>

#include "../common/cpu/pairwise_cpu.h"

TORCH_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("laplacian_kernel", mmlaplace::cpu::pairwise_forward<mmlaplace::Laplacian>);
  library.impl("_laplacian_kernel_backward",
               mmlaplace::cpu::pairwise_backward<mmlaplace::Laplacian>);
}
