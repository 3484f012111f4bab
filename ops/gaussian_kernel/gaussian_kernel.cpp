// Schema of gaussian_kernel: K_ij = exp(-|q_i - k_j|_2^2 / (2 bandwidth^2)).
#include "../common/tensor.h"

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def("gaussian_kernel(Tensor q, Tensor k, float bandwidth) -> Tensor");
  library.def(
      "_gaussian_kernel_backward(Tensor grad, Tensor q, Tensor k, Tensor out, float bandwidth) -> "
      "(Tensor, Tensor)");
}
