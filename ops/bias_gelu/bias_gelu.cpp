// Schemas of the two halves of an FFN between its linears: GELU(x + bias), and its derivatives.
//
// x is (rows, C) and bias (C). `tanh` chooses the approximation of that name. The result is written
// to `out`, which may be x itself, so that a block of rows stays in the cache. The backward writes
// GELU(x + bias) there too, for the weights of the second linear, and the gradient of x over
// `grad`. It returns the gradient of the bias.
#include "../common/tensor.h"

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def("_bias_gelu(Tensor x, Tensor bias, bool tanh, Tensor(a!) out) -> ()");
  library.def(
      "_bias_gelu_backward(Tensor(a!) grad, Tensor x, Tensor bias, bool tanh, Tensor(b!) out) -> "
      "Tensor");
}
