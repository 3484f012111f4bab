// Schema of what PolaFormer does with its queries, without gradients.
//
// q is (B, heads, N, d), power and shift are (heads, 1, d). sums (B, heads, 2d, d + 2) has what the
// features of queries are multiplied by: a column for each channel of the result, and one for the
// normaliser of each stream. The result is (B, N, heads, d).
#include "../common/tensor.h"

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def(
      "_pola_streams(Tensor q, Tensor power, Tensor shift, Tensor sums, float eps) -> Tensor");
}
