#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <torch/library.h>

#include <string>
#include <tuple>

#include "nystrom_attention_backward.h"
#include "nystrom_attention_forward.h"

namespace mmlaplace {
namespace {

using nystrom::by_head;
using nystrom::Problem;
using nystrom::with_metric;

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& landmarks,
    const at::Tensor& inverse, const at::Tensor& scale, const c10::optional<at::Tensor>& rotary,
    c10::string_view kernel, double bandwidth, double whitening, bool adjacent) {
  const nystrom::Sizes sizes = nystrom::check(q, k, v, landmarks, inverse, scale, rotary);
  check_rotary("nystrom_attention", rotary, sizes.dims, sizes.queries);
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> results;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, q.scalar_type(), "nystrom_attention", [&] {
        using T = at::opmath_type<scalar_t>;
        with_metric(kernel, [&](auto metric) {
          using Metric = decltype(metric);
          const Problem<T, scalar_t> problem(sizes, q, k, v, landmarks, inverse, scale, rotary,
                                             Metric::exponent(bandwidth),
                                             Metric::derivative(bandwidth), whitening, adjacent);
          nystrom::Forward<Metric, T, scalar_t> passes(problem);
          if (passes.out.numel() > 0) passes.run();
          results = {by_head(passes.out), passes.mean, passes.covariance, passes.mixed};
        });
      });
  return results;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& landmarks, const at::Tensor& inverse, const at::Tensor& scale,
    const c10::optional<at::Tensor>& rotary, const at::Tensor& mean, const at::Tensor& covariance,
    const at::Tensor& mixed, c10::string_view kernel, double bandwidth, double whitening,
    bool adjacent) {
  const nystrom::Sizes sizes = nystrom::check(q, k, v, landmarks, inverse, scale, rotary);
  check_rotary("nystrom_attention", rotary, sizes.dims, sizes.queries);
  nystrom::check_gradient(grad, q);
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> results;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, q.scalar_type(), "nystrom_attention", [&] {
        using T = at::opmath_type<scalar_t>;
        with_metric(kernel, [&](auto metric) {
          using Metric = decltype(metric);
          const Problem<T, scalar_t> problem(sizes, q, k, v, landmarks, inverse, scale, rotary,
                                             Metric::exponent(bandwidth),
                                             Metric::derivative(bandwidth), whitening, adjacent);
          nystrom::Backward<Metric, T, scalar_t> passes(
              problem, grad, mean.contiguous(), covariance.contiguous(), mixed.contiguous());
          if (grad.numel() > 0) {
            passes.run();
          } else {
            passes.dk.zero_(), passes.dv.zero_();
          }
          results = {by_head(passes.dq),
                     by_head(passes.dk),
                     by_head(passes.dv),
                     passes.dlandmarks.to(landmarks.scalar_type()),
                     passes.dinverse.to(inverse.scalar_type()),
                     passes.dscale.to(scale.scalar_type())};
        });
      });
  return results;
}

}  // namespace
}  // namespace mmlaplace

TORCH_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("nystrom_attention", mmlaplace::forward);
  library.impl("_nystrom_attention_backward", mmlaplace::backward);
}
