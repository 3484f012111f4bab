#include "../common/tensor.h"

#include "nystrom_attention.h"
#include "nystrom_attention_backward.h"
#include "nystrom_attention_forward.h"

namespace mmlaplace {
namespace nystrom {
namespace {

// A call on a CPU, with the tensors that it points into.
template <class Metric, class T, class S>
struct Call {
  using Type = T;
  const Tensor landmarks, inverse, scale, rotary;
  const Problem<T, S> problem;

  Call(const Sizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, const Inputs& inputs)
      : landmarks(wide<T>(inputs.landmarks)),
        inverse(wide<T>(inputs.inverse)),
        scale(wide<T>(inputs.scale)),
        rotary(wide<T>(inputs.rotary)),
        problem(sizes, view<const S>(q), view<const S>(k), view<const S>(v),
                landmarks.template data_ptr<T>(), inverse.template data_ptr<T>(),
                scale.template data_ptr<T>(), rotation_of<T>(rotary, inputs.adjacent),
                Metric::exponent(inputs.bandwidth), Metric::derivative(inputs.bandwidth),
                inputs.whitening) {}

  Results forward(const Sizes& sizes, const Tensor& q) const {
    const auto [batch, heads, queries, keys, marks, dims] = sizes;
    const int64_t moments = problem.whitened ? marks : 0;
    const auto zeros = [&](IntArrayRef shape) { return mmlaplace::zeros(shape, q, type_of<T>()); };
    const Tensor out = empty({batch, queries, heads, dims}, q);
    const Tensor mean = zeros({batch, heads, moments});
    const Tensor covariance = zeros({batch, heads, moments, moments});
    const Tensor mixed = zeros({batch, heads, marks, dims});
    if (out.numel() > 0) {
      Forward<Metric, T, S>(problem, out.data_ptr<S>(), mean.data_ptr<T>(),
                            covariance.data_ptr<T>(), mixed.data_ptr<T>())
          .run();
    }
    return {by_head(out), mean, covariance, mixed};
  }

  Gradients backward(const Tensor& grad, const Tensor& mean, const Tensor& covariance,
                     const Tensor& mixed, const Inputs& inputs) const {
    Backward<Metric, T, S> passes(problem, grad, mean.contiguous(), covariance.contiguous(),
                                  mixed.contiguous());
    if (grad.numel() > 0) {
      passes.run();
    } else {
      passes.dk.zero_(), passes.dv.zero_();
    }
    return {by_head(passes.dq),
            by_head(passes.dk),
            by_head(passes.dv),
            passes.dlandmarks.to(inputs.landmarks.scalar_type()),
            passes.dinverse.to(inputs.inverse.scalar_type()),
            passes.dscale.to(inputs.scale.scalar_type())};
  }
};

struct Cpu {};

}  // namespace

template <class Metric>
struct Attention<Cpu, Metric> {
  template <class F>
  static auto with_call(const Tensor& q, const Tensor& k, const Tensor& v, const Inputs& inputs,
                        const F& f) {
    const Sizes sizes = check(q, k, v, inputs);
    return MMLAPLACE_DISPATCH(q.scalar_type(), "nystrom_attention", [&] {
      return f(sizes, Call<Metric, Wide<scalar_t>, scalar_t>(sizes, q, k, v, inputs));
    });
  }
  static Results forward(const Tensor& q, const Tensor& k, const Tensor& v, const Inputs& inputs) {
    return with_call(q, k, v, inputs,
                     [&](const Sizes& sizes, const auto& call) { return call.forward(sizes, q); });
  }
  static Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Inputs& inputs, const Tensor& mean, const Tensor& covariance,
                            const Tensor& mixed) {
    return with_call(q, k, v, inputs, [&](const Sizes& sizes, const auto& call) {
      check_gradient(sizes, grad, q, mean, covariance, mixed, inputs.whitening);
      return call.backward(grad, mean, covariance, mixed, inputs);
    });
  }
};

}  // namespace nystrom
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CPU, library) {
  using mmlaplace::nystrom::Cpu;
  library.impl("nystrom_attention", MMLAPLACE_KERNEL(mmlaplace::nystrom::forward<Cpu>));
  library.impl("_nystrom_attention_backward", MMLAPLACE_KERNEL(mmlaplace::nystrom::backward<Cpu>));
}
