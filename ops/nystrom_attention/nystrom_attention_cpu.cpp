#include "../common/tensor.h"

#include <tuple>

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
  const Tensor landmarks, inverse, scale, rotary;
  const nystrom::Problem<T, S> problem;

  Call(const nystrom::Sizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v,
       const Tensor& landmarks, const Tensor& inverse, const Tensor& scale,
       const OptionalTensor& rotary, double bandwidth, double whitening, bool adjacent)
      : landmarks(wide<T>(landmarks)),
        inverse(wide<T>(inverse)),
        scale(wide<T>(scale)),
        rotary(wide<T>(rotary)),
        problem(sizes, view<const S>(q), view<const S>(k), view<const S>(v),
                this->landmarks.template data_ptr<T>(), this->inverse.template data_ptr<T>(),
                this->scale.template data_ptr<T>(), rotation_of<T>(this->rotary, adjacent),
                Metric::exponent(bandwidth), Metric::derivative(bandwidth), whitening) {}
};

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(const Tensor& q, const Tensor& k,
                                                   const Tensor& v, const Tensor& landmarks,
                                                   const Tensor& inverse, const Tensor& scale,
                                                   const OptionalTensor& rotary, StringView kernel,
                                                   double bandwidth, OptionalDouble whitening_eps,
                                                   StringView form) {
  const nystrom::Sizes sizes = nystrom::check(q, k, v, landmarks, inverse, scale, rotary);
  const double whitening = nystrom::whitening_of(whitening_eps);
  const bool adjacent = is_adjacent("nystrom_attention", form);
  std::tuple<Tensor, Tensor, Tensor, Tensor> results;
  MMLAPLACE_DISPATCH(q.scalar_type(), "nystrom_attention", [&] {
    using T = Wide<scalar_t>;
    with_metric(kernel, bandwidth, [&](auto metric) {
      using Metric = decltype(metric);
      const Call<Metric, T, scalar_t> call(sizes, q, k, v, landmarks, inverse, scale, rotary,
                                           bandwidth, whitening, adjacent);
      const auto zeros = [&](IntArrayRef shape) {
        return mmlaplace::zeros(shape, q, type_of<T>());
      };
      const auto [batch, heads, queries, keys, marks, dims] = sizes;
      const int64_t moments = call.problem.whitened ? marks : 0;
      const Tensor out = empty({batch, queries, heads, dims}, q);
      const Tensor mean = zeros({batch, heads, moments});
      const Tensor covariance = zeros({batch, heads, moments, moments});
      const Tensor mixed = zeros({batch, heads, marks, dims});
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

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& landmarks,
    const Tensor& inverse, const Tensor& scale, const OptionalTensor& rotary, const Tensor& mean,
    const Tensor& covariance, const Tensor& mixed, StringView kernel, double bandwidth,
    OptionalDouble whitening_eps, StringView form) {
  const nystrom::Sizes sizes = nystrom::check(q, k, v, landmarks, inverse, scale, rotary);
  const double whitening = nystrom::whitening_of(whitening_eps);
  const bool adjacent = is_adjacent("nystrom_attention", form);
  nystrom::check_gradient(sizes, grad, q, mean, covariance, mixed, whitening);
  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> results;
  MMLAPLACE_DISPATCH(q.scalar_type(), "nystrom_attention", [&] {
    using T = Wide<scalar_t>;
    with_metric(kernel, bandwidth, [&](auto metric) {
      using Metric = decltype(metric);
      const Call<Metric, T, scalar_t> call(sizes, q, k, v, landmarks, inverse, scale, rotary,
                                           bandwidth, whitening, adjacent);
      nystrom::Backward<Metric, T, scalar_t> passes(call.problem, grad, mean.contiguous(),
                                                    covariance.contiguous(), mixed.contiguous());
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

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("nystrom_attention", MMLAPLACE_KERNEL(mmlaplace::forward));
  library.impl("_nystrom_attention_backward", MMLAPLACE_KERNEL(mmlaplace::backward));
}
