// What the sources of normalized_nystrom_attention share: its inputs and checks.
//
//   C = k(Q, L) (N, m), B = k(K, L) (n, m), P the inverse (m, m)
//   [U, u] = C P B^T [V, 1],  out_i = U_i / max(u_i, smallest)
//
// Each row of C is divided by its largest value first, which cancels: so a query that is far from
// all landmarks has no sum of zeros. `smallest` is floor * mean |P B^T 1|.
//
// mmlaplace/ops/normalized_nystrom_attention.py has the specification, docs/maths.md the passes.
#pragma once

#include "../nystrom_attention/nystrom_attention.h"

namespace mmlaplace {
namespace normalized_nystrom {

constexpr const char* kOp = "normalized_nystrom_attention";

using nystrom::Sizes;
using Results = std::tuple<Tensor, Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// What a call gets besides its tokens.
struct Inputs {
  Tensor landmarks, inverse;
  OptionalTensor rotary;
  double bandwidth, floor;
  bool adjacent;

  Inputs(const Tensor& landmarks, const Tensor& inverse, const OptionalTensor& rotary,
         double bandwidth, double floor, StringView form)
      : landmarks(landmarks),
        inverse(inverse),
        rotary(rotary),
        bandwidth(bandwidth),
        floor(floor),
        adjacent(is_adjacent(kOp, form)) {
    check_positive(kOp, "floor", floor);
  }

  // The same for what nystrom_attention shares, without a scale and whitening.
  nystrom::Inputs of_tokens() const {
    return {landmarks, inverse, Tensor(), rotary, bandwidth, {}, adjacent ? "pairs" : "half"};
  }
};

inline Sizes check(const Tensor& q, const Tensor& k, const Tensor& v, const Inputs& inputs) {
  const Sizes sizes =
      nystrom::check_tokens(kOp, q, k, v, inputs.landmarks, inputs.inverse, inputs.rotary);
  MMLAPLACE_CHECK(sizes.marks > 0, kOp, ": there must be a landmark, got landmarks ",
                  inputs.landmarks.sizes());
  return sizes;
}

// What the backward gets besides: the gradient of the result, and what the forward returned.
inline void check_gradient(const Sizes& sizes, const Tensor& grad, const Tensor& q,
                           const Tensor& key_sum, const Tensor& mixed) {
  MMLAPLACE_CHECK(grad.sizes() == q.sizes() && grad.scalar_type() == q.scalar_type() &&
                      grad.device() == q.device(),
                  kOp, ": the gradient must be ", q.sizes(), " of ", q.scalar_type(), " on ",
                  q.device(), " as q is, got ", grad.sizes(), " of ", grad.scalar_type(), " on ",
                  grad.device());
  const auto [batch, heads, queries, keys, marks, dims] = sizes;
  MMLAPLACE_CHECK(key_sum.sizes().equals({batch, heads, marks}) &&
                      mixed.sizes().equals({batch, heads, marks, dims}),
                  kOp, ": key_sum ", key_sum.sizes(), " and mixed ", mixed.sizes(),
                  " are not those of the forward");
  for (const Tensor& kept : {key_sum, mixed}) {
    MMLAPLACE_CHECK(kept.scalar_type() == wide(q.scalar_type()) && kept.device() == q.device(), kOp,
                    ": key_sum and mixed must be ", wide(q.scalar_type()), " on ", q.device(),
                    ", got ", kept.scalar_type(), " on ", kept.device());
  }
}

// The op on a device.
template <class Device, class Metric>
struct Attention {
  static Results forward(const Tensor& q, const Tensor& k, const Tensor& v, const Inputs& inputs);
  static Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Inputs& inputs, const Tensor& key_sum, const Tensor& mixed);
};

template <class Device>
Results forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& landmarks,
                const Tensor& inverse, const OptionalTensor& rotary, StringView kernel,
                double bandwidth, double floor, StringView form) {
  const Inputs inputs(landmarks, inverse, rotary, bandwidth, floor, form);
  Results results;
  nystrom::with_metric(kOp, kernel, bandwidth, [&](auto metric) {
    results = Attention<Device, decltype(metric)>::forward(q, k, v, inputs);
  });
  return results;
}

template <class Device>
Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                   const Tensor& landmarks, const Tensor& inverse, const OptionalTensor& rotary,
                   const Tensor& key_sum, const Tensor& mixed, StringView kernel, double bandwidth,
                   double floor, StringView form) {
  const Inputs inputs(landmarks, inverse, rotary, bandwidth, floor, form);
  Gradients gradients;
  nystrom::with_metric(kOp, kernel, bandwidth, [&](auto metric) {
    gradients =
        Attention<Device, decltype(metric)>::backward(grad, q, k, v, inputs, key_sum, mixed);
  });
  return gradients;
}

}  // namespace normalized_nystrom
}  // namespace mmlaplace
