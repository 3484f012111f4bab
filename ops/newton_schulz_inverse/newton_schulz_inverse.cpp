// Schemas of newton_schulz_inverse, (mat + ridge I)^-1, and of a start of SOFT.
#include "../common/tensor.h"

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace, library) {
  // X_0 = start_scale P with a scale for each matrix, or I / |P|_inf.
  library.def(
      "newton_schulz_inverse(Tensor mat, int num_iters, float ridge, Tensor? start_scale=None)"
      " -> Tensor");
  library.def(
      "_newton_start_scale(Tensor mat, float factor, bool halve, bool per_batch) -> Tensor");
}
