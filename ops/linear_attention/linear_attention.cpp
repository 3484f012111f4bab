// Schema of linear_attention, see linear_attention.h.
//
// Besides the result there is what the backward needs: the sums over the keys (B, heads, f, d + 1).
#include "../common/tensor.h"

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def(
      "linear_attention(Tensor q, Tensor k, Tensor v, Tensor? top_q, Tensor? top_k, float eps, str "
      "features, int streams) -> (Tensor, Tensor)");
  library.def(
      "_linear_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? top_q, "
      "Tensor? top_k, Tensor sums, float eps, str features, int streams) -> (Tensor, Tensor, "
      "Tensor, Tensor, Tensor)");
}
