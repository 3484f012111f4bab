#include "../common/tensor.h"

#include "normalized_nystrom_attention.h"
#include "normalized_nystrom_attention_backward.h"
#include "normalized_nystrom_attention_forward.h"

namespace mmlaplace {
namespace normalized_nystrom {
namespace {

// A call on a CPU, with the tensors that it points into.
template <class Metric, class T, class S>
struct Call {
  const Tensor landmarks, inverse, rotary;
  const Problem<T, S> problem;
  const T floor;

  Call(const Sizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, const Inputs& inputs)
      : landmarks(mmlaplace::wide<T>(inputs.landmarks)),
        inverse(mmlaplace::wide<T>(inputs.inverse)),
        rotary(mmlaplace::wide<T>(inputs.rotary)),
        problem(sizes, view<const S>(q), view<const S>(k), view<const S>(v),
                landmarks.template data_ptr<T>(), inverse.template data_ptr<T>(), nullptr,
                rotation_of<T>(rotary, inputs.adjacent), Metric::exponent(inputs.bandwidth),
                Metric::derivative(inputs.bandwidth), -1),
        floor(static_cast<T>(inputs.floor)) {}

  Results forward(const Sizes& sizes, const Tensor& q) const {
    const auto [batch, heads, queries, keys, marks, dims] = sizes;
    const Tensor out = empty({batch, queries, heads, dims}, q);
    const Tensor key_sum = mmlaplace::zeros({batch, heads, marks}, q, type_of<T>());
    const Tensor mixed = mmlaplace::zeros({batch, heads, marks, dims}, q, type_of<T>());
    if (out.numel() > 0) {
      Forward<Metric, T, S>(problem, floor, out.data_ptr<S>(), key_sum.data_ptr<T>(),
                            mixed.data_ptr<T>())
          .run();
    }
    return {nystrom::by_head(out), key_sum, mixed};
  }

  Gradients backward(const Tensor& grad, const Tensor& key_sum, const Tensor& mixed,
                     const Inputs& inputs) const {
    Backward<Metric, T, S> passes(problem, floor, grad, key_sum.contiguous(), mixed.contiguous());
    if (grad.numel() > 0) {
      passes.run();
    } else {
      passes.dk.zero_(), passes.dv.zero_();
    }
    return {nystrom::by_head(passes.dq), nystrom::by_head(passes.dk), nystrom::by_head(passes.dv),
            passes.dlandmarks.to(inputs.landmarks.scalar_type()),
            passes.dinverse.to(inputs.inverse.scalar_type())};
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
    return MMLAPLACE_DISPATCH(q.scalar_type(), kOp, [&] {
      return f(sizes, Call<Metric, Wide<scalar_t>, scalar_t>(sizes, q, k, v, inputs));
    });
  }
  static Results forward(const Tensor& q, const Tensor& k, const Tensor& v, const Inputs& inputs) {
    return with_call(q, k, v, inputs,
                     [&](const Sizes& sizes, const auto& call) { return call.forward(sizes, q); });
  }
  static Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Inputs& inputs, const Tensor& key_sum, const Tensor& mixed) {
    return with_call(q, k, v, inputs, [&](const Sizes& sizes, const auto& call) {
      check_gradient(sizes, grad, q, key_sum, mixed);
      return call.backward(grad, key_sum, mixed, inputs);
    });
  }
};

}  // namespace normalized_nystrom
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CPU, library) {
  using mmlaplace::normalized_nystrom::Cpu;
  library.impl("normalized_nystrom_attention",
               MMLAPLACE_KERNEL(mmlaplace::normalized_nystrom::forward<Cpu>));
  library.impl("_normalized_nystrom_attention_backward",
               MMLAPLACE_KERNEL(mmlaplace::normalized_nystrom::backward<Cpu>));
}
