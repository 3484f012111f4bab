// What the CPU and CUDA sources of nystrom_attention share: the op, its inputs and checks.
//
//   C = k(Q, L) (N, m), B = k(K, L) (n, m), P the inverse (m, m), s the scale of a head
//   with whitening:  out = s (C - 1 mean(C)^T) P sum_j r_j b_j v_j^T + mean(V),
//                    r_j = (b_j^T P^T Cov(C) P b_j + eps)^(-1/2)
//   without:         out = s C P sum_j b_j v_j^T
//
// mmlaplace/ops/nystrom_attention.py has the specification and docs/maths.md the passes.
#pragma once

#include "../common/tensor.h"

#include <tuple>

#include "../common/metrics.h"
#include "../common/pairwise.h"
#include "../common/rotary.h"
#include "nystrom_attention_sizes.h"

namespace mmlaplace {
namespace nystrom {

using Results = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// What a call gets besides its tokens. Its `whitening` is the eps, or -1 for none. With a `ridge`,
// which else is -1, `inverse` is a place for (k(L, L) + ridge I)^-1, and `scale` (heads) is that of
// landmark_attention, times n, or undefined.
struct Inputs {
  Tensor landmarks, inverse, scale;
  OptionalTensor rotary;
  double bandwidth, whitening, ridge = -1;
  bool adjacent;

  Inputs(const Tensor& landmarks, const Tensor& inverse, const Tensor& scale,
         const OptionalTensor& rotary, double bandwidth, const OptionalDouble& eps, StringView form)
      : landmarks(landmarks),
        inverse(inverse),
        scale(scale),
        rotary(rotary),
        bandwidth(bandwidth),
        whitening(eps.has_value() ? *eps : -1),
        adjacent(is_adjacent("nystrom_attention", form)) {
    if (eps.has_value()) check_positive("nystrom_attention", "whitening_eps", *eps);
  }
};

// The checks of tokens, landmarks, inverse and rotary positions, for an op of this name.
inline Sizes check_tokens(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& landmarks, const Tensor& inverse,
                          const OptionalTensor& rotary) {
  for (const Tensor& tensor : {q, k, v, landmarks, inverse}) {
    MMLAPLACE_CHECK(tensor.dim() == 4 && tensor.size(0) == q.size(0) &&
                        tensor.size(1) == q.size(1) && tensor.device() == q.device(),
                    op,
                    ": q, k, v, landmarks and inverse must be (B, heads, ., .) on one device, got ",
                    q.sizes(), ", ", k.sizes(), ", ", v.sizes(), ", ", landmarks.sizes(), ", ",
                    inverse.sizes());
  }
  const Sizes sizes{q.size(0), q.size(1), q.size(2), k.size(2), landmarks.size(2), q.size(3)};
  MMLAPLACE_CHECK(k.size(3) == sizes.dims && landmarks.size(3) == sizes.dims &&
                      v.size(3) == sizes.dims && v.size(2) == sizes.keys &&
                      inverse.size(2) == sizes.marks && inverse.size(3) == sizes.marks,
                  op, ": k ", k.sizes(), ", v ", v.sizes(), ", landmarks ", landmarks.sizes(),
                  " and inverse ", inverse.sizes(), " do not fit q ", q.sizes());
  check_floating(op, "q", q);
  MMLAPLACE_CHECK(k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(), op,
                  ": q, k and v must share their dtype, got ", q.scalar_type(), ", ",
                  k.scalar_type(), " and ", v.scalar_type());
  check_floating(op, "landmarks", landmarks);
  check_floating(op, "inverse", inverse);
  check_rotary(op, rotary, q);
  MMLAPLACE_CHECK(!rotary.has_value() || sizes.queries == sizes.keys, op,
                  ": rotary needs as many queries as keys, got ", sizes.queries, " and ",
                  sizes.keys);
  return sizes;
}

inline Sizes check(const Tensor& q, const Tensor& k, const Tensor& v, const Inputs& inputs) {
  const Tensor& scale = inputs.scale;
  const char* op = "nystrom_attention";
  const Sizes sizes = check_tokens(op, q, k, v, inputs.landmarks, inputs.inverse, inputs.rotary);
  if (inputs.ridge >= 0) {
    MMLAPLACE_CHECK(!scale.defined() || (scale.dim() == 1 && scale.size(0) == sizes.heads &&
                                         scale.device() == q.device()),
                    "landmark_attention: gamma must be (heads) on ", q.device());
  } else {
    MMLAPLACE_CHECK(scale.dim() == 2 && scale.size(0) == sizes.batch &&
                        scale.size(1) == sizes.heads && scale.device() == q.device(),
                    op, ": scale must be (B, heads) on ", q.device(), ", got ", scale.sizes(),
                    " on ", scale.device());
  }
  if (scale.defined()) check_floating(op, "scale", scale);
  return sizes;
}

// What the backward gets besides: the gradient of the result, and what the forward returned.
inline void check_gradient(const Sizes& sizes, const Tensor& grad, const Tensor& q,
                           const Tensor& mean, const Tensor& covariance, const Tensor& mixed,
                           double whitening) {
  const char* op = "nystrom_attention";
  MMLAPLACE_CHECK(grad.sizes() == q.sizes() && grad.scalar_type() == q.scalar_type() &&
                      grad.device() == q.device(),
                  op, ": the gradient must be ", q.sizes(), " of ", q.scalar_type(), " on ",
                  q.device(), " as q is, got ", grad.sizes(), " of ", grad.scalar_type(), " on ",
                  grad.device());
  const auto [batch, heads, queries, keys, marks, dims] = sizes;
  const int64_t moments = whitening >= 0 ? marks : 0;
  MMLAPLACE_CHECK(mean.sizes().equals({batch, heads, moments}) &&
                      covariance.sizes().equals({batch, heads, moments, moments}) &&
                      mixed.sizes().equals({batch, heads, marks, dims}),
                  op, ": mean ", mean.sizes(), ", covariance ", covariance.sizes(), " and mixed ",
                  mixed.sizes(), " are not those of the forward");
  for (const Tensor& kept : {mean, covariance, mixed}) {
    MMLAPLACE_CHECK(kept.scalar_type() == wide(q.scalar_type()) && kept.device() == q.device(), op,
                    ": mean, covariance and mixed must be ", wide(q.scalar_type()), " on ",
                    q.device(), ", got ", kept.scalar_type(), " on ", kept.device());
  }
}

// Calls f with the metric of that name, for which the bandwidth must be in range.
template <class F>
void with_metric(const char* op, StringView name, double bandwidth, const F& f) {
  if (name == "laplacian") {
    check_bandwidth<Laplacian>(op, bandwidth);
    f(Laplacian{});
  } else {
    MMLAPLACE_CHECK(name == "gaussian", op, ": kernel must be laplacian or gaussian, got ", name);
    check_bandwidth<Gaussian>(op, bandwidth);
    f(Gaussian{});
  }
}

// Tokens (B, N, heads, d) as (B, heads, N, d).
inline Tensor by_head(const Tensor& tokens) { return tokens.transpose(1, 2); }

// The op on a device. On a GPU each metric is compiled by a source of its own, as its kernels take
// long enough.
template <class Device, class Metric>
struct Attention {
  static Results forward(const Tensor& q, const Tensor& k, const Tensor& v, const Inputs& inputs);
  static Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Inputs& inputs, const Tensor& mean, const Tensor& covariance,
                            const Tensor& mixed);
};

template <class Device>
Results forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& landmarks,
                const Tensor& inverse, const Tensor& scale, const OptionalTensor& rotary,
                StringView kernel, double bandwidth, OptionalDouble whitening_eps,
                StringView form) {
  const Inputs inputs(landmarks, inverse, scale, rotary, bandwidth, whitening_eps, form);
  Results results;
  with_metric("nystrom_attention", kernel, bandwidth, [&](auto metric) {
    results = Attention<Device, decltype(metric)>::forward(q, k, v, inputs);
  });
  return results;
}

template <class Device>
Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                   const Tensor& landmarks, const Tensor& inverse, const Tensor& scale,
                   const OptionalTensor& rotary, const Tensor& mean, const Tensor& covariance,
                   const Tensor& mixed, StringView kernel, double bandwidth,
                   OptionalDouble whitening_eps, StringView form) {
  const Inputs inputs(landmarks, inverse, scale, rotary, bandwidth, whitening_eps, form);
  Gradients gradients;
  with_metric("nystrom_attention", kernel, bandwidth, [&](auto metric) {
    gradients = Attention<Device, decltype(metric)>::backward(grad, q, k, v, inputs, mean,
                                                              covariance, mixed);
  });
  return gradients;
}

}  // namespace nystrom
}  // namespace mmlaplace
