// Schema of cholesky_inverse, ((mat + mat^T) / 2 + ridge I)^-1. Its gradient is that of any
// inverse.
#include "../common/tensor.h"

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def("cholesky_inverse(Tensor mat, float ridge) -> Tensor");
}
