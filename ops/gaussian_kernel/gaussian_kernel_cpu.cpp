#include "../common/tensor.h"

#include "../common/cpu/pairwise_cpu.h"

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("gaussian_kernel",
               MMLAPLACE_KERNEL(mmlaplace::cpu::pairwise_forward<mmlaplace::Gaussian>));
  library.impl("_gaussian_kernel_backward",
               MMLAPLACE_KERNEL(mmlaplace::cpu::pairwise_backward<mmlaplace::Gaussian>));
}
