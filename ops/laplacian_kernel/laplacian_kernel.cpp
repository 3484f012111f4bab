// Schema of laplacian_kernel: K_ij = exp(-|q_i - k_j|_1 / bandwidth).
#include "../common/tensor.h"

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def("laplacian_kernel(Tensor q, Tensor k, float bandwidth) -> Tensor");
  library.def(
      "_laplacian_kernel_backward(Tensor grad, Tensor q, Tensor k, Tensor out, float bandwidth) -> "
      "(Tensor, Tensor)");
}
