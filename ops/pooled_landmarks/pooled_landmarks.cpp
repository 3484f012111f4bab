// Schema of pooled_landmarks: the means of cells of a map of turned tokens.
//
// k is (B, heads, N, d) with N = height * width. With a ratio, a cell has at most ratio x ratio
// tokens. Otherwise there are rows x columns cells, as in adaptive average pooling. `rotary` and
// `rotary_form` are those of nystrom_attention. The result (B, heads, m, d) is at least fp32.
#include "../common/tensor.h"

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def(
      "pooled_landmarks(Tensor k, Tensor? rotary, str rotary_form, SymInt height, SymInt width, "
      "SymInt? rows, SymInt? columns, int? ratio) -> Tensor");
  library.def(
      "_pooled_landmarks_backward(Tensor grad, Tensor k, Tensor? rotary, str rotary_form, "
      "SymInt height, SymInt width, SymInt? rows, SymInt? columns, int? ratio) -> Tensor");
}
