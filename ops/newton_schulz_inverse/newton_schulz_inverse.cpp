// Schemas of newton_schulz_inverse, (mat + ridge I)^-1, its gradient, and a start of SOFT.
#include <ATen/Context.h>
#include <ATen/ops/matmul.h>
#include <torch/library.h>

namespace {

// dX = -X dP X. This holds for the inverse X however it was computed.
at::Tensor backward(const at::Tensor& grad, const at::Tensor& inverse) {
  at::NoTF32Guard no_tf32;
  const at::Tensor transposed = inverse.transpose(-2, -1);
  return -at::matmul(transposed, at::matmul(grad, transposed));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(mmlaplace, library) {
  // X_0 = start_scale P with a scale for each matrix, or I / |P|_inf.
  library.def(
      "newton_schulz_inverse(Tensor mat, int num_iters, float ridge, Tensor? start_scale=None)"
      " -> Tensor");
  library.def("_newton_schulz_inverse_backward(Tensor grad, Tensor inverse) -> Tensor");
  library.def(
      "_newton_start_scale(Tensor mat, float factor, bool halve, bool per_batch) -> Tensor");
}

TORCH_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("_newton_schulz_inverse_backward", backward);
}

TORCH_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("_newton_schulz_inverse_backward", backward);
}
