// Schemas of newton_schulz_inverse, (mat + ridge I)^-1, its gradient, and a start of SOFT.
#include "newton_schulz_inverse.h"

namespace mmlaplace {
namespace {

// dX = -X dP X. This holds for the inverse X however it was computed.
Tensor backward(const Tensor& grad, const Tensor& inverse) {
  newton_schulz::check(inverse);
  MMLAPLACE_CHECK(grad.sizes() == inverse.sizes() && grad.scalar_type() == inverse.scalar_type(),
                  "newton_schulz_inverse: the gradient must be ", inverse.scalar_type(), " ",
                  inverse.sizes(), ", got ", grad.scalar_type(), " ", grad.sizes());
  NoTF32Guard no_tf32;
  const int64_t m = inverse.size(-1);
  const Tensor transposed = inverse.reshape({-1, m, m}).transpose(1, 2);
  return bmm(transposed, bmm(grad.reshape({-1, m, m}), transposed)).mul_(-1).view(grad.sizes());
}

}  // namespace
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace, library) {
  // X_0 = start_scale P with a scale for each matrix, or I / |P|_inf.
  library.def(
      "newton_schulz_inverse(Tensor mat, int num_iters, float ridge, Tensor? start_scale=None)"
      " -> Tensor");
  library.def("_newton_schulz_inverse_backward(Tensor grad, Tensor inverse) -> Tensor");
  library.def(
      "_newton_start_scale(Tensor mat, float factor, bool halve, bool per_batch) -> Tensor");
}

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("_newton_schulz_inverse_backward", MMLAPLACE_KERNEL(mmlaplace::backward));
}

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("_newton_schulz_inverse_backward", MMLAPLACE_KERNEL(mmlaplace::backward));
}
