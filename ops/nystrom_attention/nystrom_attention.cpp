// Schema of nystrom_attention: attention through landmarks, see nystrom_attention.h.
//
// `kernel` is "laplacian" or "gaussian". `rotary` (2, pairs, N) has the cosines and sines by which
// pairs of channels of q and k turn first: with the form "half" channels c and c + pairs, with
// "pairs" 2 c and 2 c + 1. `scale` is (B, heads). Besides the result there is what the backward
// needs: the mean (B, heads, m) and covariance (B, heads, m, m) of C and sum_j r_j b_j v_j^T.
#include "../common/tensor.h"

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def(
      "nystrom_attention(Tensor q, Tensor k, Tensor v, Tensor landmarks, Tensor inverse, Tensor "
      "scale, Tensor? rotary, str kernel, float bandwidth, float? whitening_eps, str rotary_form) "
      "-> "
      "(Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "_nystrom_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor landmarks, "
      "Tensor inverse, Tensor scale, Tensor? rotary, Tensor mean, Tensor covariance, Tensor mixed, "
      "str kernel, float bandwidth, float? whitening_eps, str rotary_form) -> (Tensor, Tensor, "
      "Tensor, "
      "Tensor, Tensor, Tensor)");
  // Its landmarks are those of pooled_landmarks of k, and P = (k(L, L) + ridge I)^-1. s is gamma /
  // N with gamma (heads), or 1. It is for inference: where autograd records, Python calls the ops.
  library.def(
      "_landmark_attention(Tensor q, Tensor k, Tensor v, Tensor? gamma, Tensor? rotary, str "
      "rotary_form, SymInt height, SymInt width, SymInt? rows, SymInt? columns, int? ratio, str "
      "kernel, float bandwidth, float ridge, float? whitening_eps) -> Tensor");
}
