#include "../common/tensor.h"

#include "kernel_attention.h"
#include "kernel_attention_backward.h"
#include "kernel_attention_forward.h"

namespace mmlaplace {
namespace exact {
namespace {

// A call on a CPU, with the tensors that it points into.
template <class Metric, class T, class S>
struct Call {
  const Tensor rotary;
  const Problem<T, S> problem;

  Call(const Sizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, const Inputs& inputs)
      : rotary(mmlaplace::wide<T>(inputs.rotary)),
        problem({sizes.batch, sizes.heads, sizes.queries, sizes.keys, kTile, sizes.dims},
                view<const S>(q), view<const S>(k), view<const S>(v), nullptr, nullptr, nullptr,
                rotation_of<T>(rotary, inputs.adjacent), Metric::exponent(inputs.bandwidth),
                Metric::derivative(inputs.bandwidth), -1) {}

  Results forward(const Sizes& sizes, const Tensor& q) const {
    const auto [batch, heads, queries, keys, dims] = sizes;
    const Tensor out = empty({batch, queries, heads, dims}, q);
    const Tensor means = empty({batch, queries, heads, dims}, q, type_of<T>());
    const Tensor log_sums = empty({batch, heads, queries}, q, type_of<T>());
    if (keys > 0) {
      Forward<Metric, T, S>(problem, out.data_ptr<S>(), means.data_ptr<T>(), log_sums.data_ptr<T>())
          .run();
    } else {
      out.zero_(), means.zero_(), log_sums.zero_();
    }
    return {by_head(out), by_head(means), log_sums};
  }

  Gradients backward(const Tensor& grad, const Tensor& means, const Tensor& log_sums) const {
    Backward<Metric, T, S> passes(problem, grad, means, log_sums);
    passes.run();
    return {by_head(passes.dq), by_head(passes.dk), by_head(passes.dv)};
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
                            const Inputs& inputs, const Tensor& means, const Tensor& log_sums) {
    return with_call(q, k, v, inputs, [&](const Sizes& sizes, const auto& call) {
      check_gradient(sizes, grad, q, means, log_sums);
      return call.backward(grad, means, log_sums);
    });
  }
};

}  // namespace exact
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CPU, library) {
  using mmlaplace::exact::Cpu;
  library.impl("kernel_attention", MMLAPLACE_KERNEL(mmlaplace::exact::forward<Cpu>));
  library.impl("_kernel_attention_backward", MMLAPLACE_KERNEL(mmlaplace::exact::backward<Cpu>));
}
