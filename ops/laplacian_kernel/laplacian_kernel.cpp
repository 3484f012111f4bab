// Schema of laplacian_kernel: K_ij = exp(-|q_i - k_j|_1 / scale).
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def("laplacian_kernel(Tensor q, Tensor k, float scale) -> Tensor");
  library.def(
      "_laplacian_kernel_backward(Tensor grad, Tensor q, Tensor k, Tensor out, float scale) -> "
      "(Tensor, Tensor)");
}
