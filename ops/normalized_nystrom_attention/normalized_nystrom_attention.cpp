// Schema of normalized_nystrom_attention: attention through landmarks whose weights of each query
// add up to one, see normalized_nystrom_attention.h.
//
// The arguments are those of nystrom_attention, without a scale, which would cancel. `floor` is the
// smallest sum of weights, as a share of their mean size. Besides the result there is what the
// backward needs: the sums over the keys of b_j (B, heads, m) and of b_j v_j^T (B, heads, m, d).
#include "../common/tensor.h"

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def(
      "normalized_nystrom_attention(Tensor q, Tensor k, Tensor v, Tensor landmarks, Tensor "
      "inverse, Tensor? rotary, str kernel, float bandwidth, float floor, str rotary_form) -> "
      "(Tensor, Tensor, Tensor)");
  library.def(
      "_normalized_nystrom_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor "
      "landmarks, Tensor inverse, Tensor? rotary, Tensor key_sum, Tensor mixed, str kernel, float "
      "bandwidth, float floor, str rotary_form) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}
