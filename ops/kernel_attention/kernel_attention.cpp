// Schema of kernel_attention: attention by a kernel of all pairs of tokens, whose rows are
// normalised, see kernel_attention.h.
//
// `rotary` has the cosines and sines by which q and k turn first, and `rotary_form` says which
// channels are pairs. Besides the result there is what the backward needs: the result in the type
// of the sums, (B, heads, N, d), which a user cannot change, and the logarithms to base 2 of the
// sums of the rows, (B, heads, N).
#include "../common/tensor.h"

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def(
      "kernel_attention(Tensor q, Tensor k, Tensor v, Tensor? rotary, str kernel, float bandwidth, "
      "str rotary_form) -> (Tensor, Tensor, Tensor)");
  library.def(
      "_kernel_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? rotary, "
      "Tensor means, Tensor log_sums, str kernel, float bandwidth, str rotary_form) -> (Tensor, "
      "Tensor, Tensor)");
}
