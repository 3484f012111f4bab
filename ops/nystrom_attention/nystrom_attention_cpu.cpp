#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <torch/library.h>

#include <tuple>

#include "../common/rotary.h"
#include "nystrom_attention.h"
#include "nystrom_attention_backward.h"
#include "nystrom_attention_forward.h"

namespace mmlaplace {
namespace {

using nystrom::by_head;
using nystrom::with_metric;

// A call, with the tensors that it points into.
template <class Metric, class T, class S>
struct Call {
  const at::Tensor landmarks, inverse, scale, rotary;
  const nystrom::Problem<T, S> problem;

  Call(const nystrom::Sizes& sizes, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
       const at::Tensor& landmarks, const at::Tensor& inverse, const at::Tensor& scale,
       const c10::optional<at::Tensor>& rotary, double bandwidth, double whitening, bool adjacent)
      : landmarks(wide<T>(landmarks)),
        inverse(wide<T>(inverse)),
        scale(wide<T>(scale)),
        rotary(wide<T>(rotary)),
        problem(sizes, view<const S>(q), view<const S>(k), view<const S>(v),
                this->landmarks.template data_ptr<T>(), this->inverse.template data_ptr<T>(),
                this->scale.template data_ptr<T>(), rotation_of<T>(this->rotary, adjacent),
                Metric::exponent(bandwidth), Metric::derivative(bandwidth), whitening) {}
};

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
          const Call<Metric, T, scalar_t> call(sizes, q, k, v, landmarks, inverse, scale, rotary,
                                               bandwidth, whitening, adjacent);
          const auto zeros = [&](at::IntArrayRef shape) {
            return at::zeros(shape, at::dtype(c10::CppTypeToScalarType<T>::value));
          };
          const auto [batch, heads, queries, keys, marks, dims] = sizes;
          const int64_t moments = call.problem.whitened ? marks : 0;
          const at::Tensor out = at::empty({batch, queries, heads, dims}, q.options());
          const at::Tensor mean = zeros({batch, heads, moments});
          const at::Tensor covariance = zeros({batch, heads, moments, moments});
          const at::Tensor mixed = zeros({batch, heads, marks, dims});
          if (out.numel() > 0) {
            nystrom::Forward<Metric, T, scalar_t>(call.problem, out.data_ptr<scalar_t>(),
                                                  mean.data_ptr<T>(), covariance.data_ptr<T>(),
                                                  mixed.data_ptr<T>())
                .run();
          }
          results = {by_head(out), mean, covariance, mixed};
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
          const Call<Metric, T, scalar_t> call(sizes, q, k, v, landmarks, inverse, scale, rotary,
                                               bandwidth, whitening, adjacent);
          nystrom::Backward<Metric, T, scalar_t> passes(
              call.problem, grad, mean.contiguous(), covariance.contiguous(), mixed.contiguous());
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
