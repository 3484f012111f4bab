// Schema, autograd and autocast of laplacian_kernel: K_ij = exp(-|q_i - k_j|_1 / scale).
#include "../common/pairwise_autograd.h"

using Op = mmlaplace::Pairwise<mmlaplace::Laplacian>;

TORCH_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def("laplacian_kernel(Tensor q, Tensor k, float scale) -> Tensor");
  library.def(
      "_laplacian_kernel_backward(Tensor grad, Tensor q, Tensor k, Tensor out, float scale) -> "
      "(Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(mmlaplace, Autograd, library) {
  library.impl("laplacian_kernel", Op::autograd);
  library.impl("_laplacian_kernel_backward", Op::autograd_backward);
}

TORCH_LIBRARY_IMPL(mmlaplace, AutocastCPU, library) {
  library.impl("laplacian_kernel", Op::autocast);
}

TORCH_LIBRARY_IMPL(mmlaplace, AutocastCUDA, library) {
  library.impl("laplacian_kernel", Op::autocast);
}
