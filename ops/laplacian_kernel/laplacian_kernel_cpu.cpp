#include "../common/tensor.h"

#include "../common/cpu/pairwise_cpu.h"

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("laplacian_kernel",
               MMLAPLACE_KERNEL(mmlaplace::cpu::pairwise_forward<mmlaplace::Laplacian>));
  library.impl("_laplacian_kernel_backward",
               MMLAPLACE_KERNEL(mmlaplace::cpu::pairwise_backward<mmlaplace::Laplacian>));
}
