// Schema, autograd and autocast of a kernel of differences, the same for every device.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "metrics.h"

namespace mmlaplace {

template <class Metric>
struct Pairwise {
  using Tensors = std::tuple<at::Tensor, at::Tensor>;

  static at::Tensor call(const at::Tensor& q, const at::Tensor& k, double scale) {
    static const auto op =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow(Metric::name, "")
            .template typed<at::Tensor(const at::Tensor&, const at::Tensor&, double)>();
    return op.call(q, k, scale);
  }

  static Tensors call_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& out, double scale) {
    static const auto op =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow(Metric::backward_name, "")
            .template typed<Tensors(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                    const at::Tensor&, double)>();
    return op.call(grad, q, k, out, scale);
  }

  struct Function : torch::autograd::Function<Function> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q,
                              const at::Tensor& k, double scale) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      at::Tensor out = call(q, k, scale);
      context->save_for_backward({q, k, out});
      context->saved_data["scale"] = scale;
      return out;
    }

    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list grads) {
      const auto saved = context->get_saved_variables();
      const auto result = call_backward(grads[0], saved[0], saved[1], saved[2],
                                        context->saved_data["scale"].toDouble());
      return {std::get<0>(result), std::get<1>(result), at::Tensor()};
    }
  };

  struct BackwardFunction : torch::autograd::Function<BackwardFunction> {
    static torch::autograd::variable_list forward(torch::autograd::AutogradContext*,
                                                  const at::Tensor& grad, const at::Tensor& q,
                                                  const at::Tensor& k, const at::Tensor& out,
                                                  double scale) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      const auto result = call_backward(grad, q, k, out, scale);
      return {std::get<0>(result), std::get<1>(result)};
    }

    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list) {
      TORCH_CHECK(false, Metric::name, " has first derivatives only; for second ones use backend="
                  "'reference' where that has them");
    }
  };

  static at::Tensor autograd(const at::Tensor& q, const at::Tensor& k, double scale) {
    return Function::apply(q, k, scale);
  }

  static Tensors autograd_backward(const at::Tensor& grad, const at::Tensor& q,
                                   const at::Tensor& k, const at::Tensor& out, double scale) {
    const auto result = BackwardFunction::apply(grad, q, k, out, scale);
    return {result[0], result[1]};
  }

  // Differences of halves lose what the kernel is about: fp32 under any autocast.
  static at::Tensor autocast(const at::Tensor& q, const at::Tensor& k, double scale) {
    const auto device = q.device().type();
    c10::impl::ExcludeDispatchKeyGuard no_autocast(at::autocast::get_autocast_dispatch_key_from_device_type(device));
    return call(at::autocast::cached_cast(at::kFloat, q, device),
                at::autocast::cached_cast(at::kFloat, k, device), scale);
  }
};

}  // namespace mmlaplace
