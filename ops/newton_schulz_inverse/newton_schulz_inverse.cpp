// Schema, autograd and autocast of newton_schulz_inverse: (mat + ridge I)^-1.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "newton_schulz.h"

namespace {

at::Tensor call(const at::Tensor& mat, int64_t num_iters, double ridge) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mmlaplace::newton_schulz_inverse", "")
                             .typed<at::Tensor(const at::Tensor&, int64_t, double)>();
  return op.call(mat, num_iters, ridge);
}

at::Tensor call_backward(const at::Tensor& grad, const at::Tensor& inverse) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mmlaplace::_newton_schulz_inverse_backward", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  return op.call(grad, inverse);
}

// The implicit gradient: dX = -X dP X, whatever the steps were that led to X.
at::Tensor backward(const at::Tensor& grad, const at::Tensor& inverse) {
  at::NoTF32Guard no_tf32;
  const at::Tensor transposed = inverse.transpose(-2, -1);
  return -at::matmul(transposed, at::matmul(grad, transposed));
}

struct Function : torch::autograd::Function<Function> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& mat,
                            int64_t num_iters, double ridge) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor inverse = call(mat, num_iters, ridge);
    context->save_for_backward({inverse});
    return inverse;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    return {call_backward(grads[0], context->get_saved_variables()[0]), at::Tensor(), at::Tensor()};
  }
};

struct BackwardFunction : torch::autograd::Function<BackwardFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& grad, const at::Tensor& inverse) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_backward(grad, inverse);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    TORCH_CHECK(false, "mmlaplace::newton_schulz_inverse has first derivatives only");
  }
};

// Halves are widened here, above autograd, so that the inverse it keeps is not rounded to a half.
at::Tensor autograd(const at::Tensor& mat, int64_t num_iters, double ridge) {
  const auto wide = at::toOpMathType(mat.scalar_type());
  return Function::apply(mat.to(wide), num_iters, ridge).to(mat.scalar_type());
}

at::Tensor autograd_backward(const at::Tensor& grad, const at::Tensor& inverse) {
  return BackwardFunction::apply(grad, inverse);
}

at::Tensor autocast(const at::Tensor& mat, int64_t num_iters, double ridge) {
  const auto device = mat.device().type();
  c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  return call(at::autocast::cached_cast(at::kFloat, mat, device), num_iters, ridge);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def("newton_schulz_inverse(Tensor mat, int num_iters, float ridge) -> Tensor");
  library.def("_newton_schulz_inverse_backward(Tensor grad, Tensor inverse) -> Tensor");
}

TORCH_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("_newton_schulz_inverse_backward", backward);
}

TORCH_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("_newton_schulz_inverse_backward", backward);
}

TORCH_LIBRARY_IMPL(mmlaplace, Autograd, library) {
  library.impl("newton_schulz_inverse", autograd);
  library.impl("_newton_schulz_inverse_backward", autograd_backward);
}

TORCH_LIBRARY_IMPL(mmlaplace, AutocastCPU, library) {
  library.impl("newton_schulz_inverse", autocast);
}

TORCH_LIBRARY_IMPL(mmlaplace, AutocastCUDA, library) {
  library.impl("newton_schulz_inverse", autocast);
}
