#include <torch/library.h>

#include "../common/cpu/pairwise_cpu.h"

TORCH_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("gaussian_kernel", mmlaplace::cpu::pairwise_forward<mmlaplace::Gaussian>);
  library.impl("_gaussian_kernel_backward", mmlaplace::cpu::pairwise_backward<mmlaplace::Gaussian>);
}
