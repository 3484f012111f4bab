// Schema, autograd and autocast of gaussian_kernel: K_ij = exp(-|q_i - k_j|_2^2 / (2 scale^2)).
#include "../common/pairwise_autograd.h"

using Op = mmlaplace::Pairwise<mmlaplace::Gaussian>;

TORCH_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def("gaussian_kernel(Tensor q, Tensor k, float scale) -> Tensor");
  library.def(
      "_gaussian_kernel_backward(Tensor grad, Tensor q, Tensor k, Tensor out, float scale) -> "
      "(Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(mmlaplace, Autograd, library) {
  library.impl("gaussian_kernel", Op::autograd);
  library.impl("_gaussian_kernel_backward", Op::autograd_backward);
}

TORCH_LIBRARY_IMPL(mmlaplace, AutocastCPU, library) {
  library.impl("gaussian_kernel", Op::autocast);
}

TORCH_LIBRARY_IMPL(mmlaplace, AutocastCUDA, library) {
  library.impl("gaussian_kernel", Op::autocast);
}
