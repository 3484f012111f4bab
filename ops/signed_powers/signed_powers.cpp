// Schemas of the powers of PolaFormer's features, and of their derivatives.
//
// x is (B, heads, N, d), power and shift are (heads, 1, d). The result (B, heads, N, 2d) has
// [relu(x)^power, relu(-x)^power] * exp(shift). The backward returns the gradients of all three.
#include "../common/tensor.h"

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def("_signed_powers(Tensor x, Tensor power, Tensor shift) -> Tensor");
  library.def(
      "_signed_powers_backward(Tensor grad, Tensor x, Tensor power, Tensor shift) -> "
      "(Tensor, Tensor, Tensor)");
}
