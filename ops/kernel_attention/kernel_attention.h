// What the sources of kernel_attention share: its inputs and checks.
//
//   out_i = sum_j k(q_i, k_j) v_j / sum_j k(q_i, k_j)
//
// The N x n kernel is computed in tiles, and never stored. As tiles of keys go by, the sums of a
// query are scaled so that its largest kernel so far counts as one. So a query that is far from all
// keys does not divide zero by zero. The backward computes the tiles again. It needs
// log_sums_i = log2 sum_j k(q_i, k_j), as the weights are 2^(log2 k(q_i, k_j) - log_sums_i).
//
// mmlaplace/ops/kernel_attention.py has the specification, docs/maths.md the formulas.
#pragma once

#include "../common/tensor.h"

#include <tuple>

#include "../nystrom_attention/nystrom_attention.h"

namespace mmlaplace {
namespace exact {

constexpr const char* kOp = "kernel_attention";

using nystrom::by_head;
using Results = std::tuple<Tensor, Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

struct Sizes {
  int64_t batch, heads, queries, keys, dims;
  int64_t batch_heads() const { return batch * heads; }
};

// What a call gets besides its tokens.
struct Inputs {
  OptionalTensor rotary;
  double bandwidth;
  bool adjacent;
};

inline Sizes check(const Tensor& q, const Tensor& k, const Tensor& v, const Inputs& inputs) {
  const auto [batch, heads, queries, keys, dims] = check_pairwise(kOp, q, k);
  MMLAPLACE_CHECK(
      v.sizes() == k.sizes() && v.scalar_type() == k.scalar_type() && v.device() == k.device(), kOp,
      ": v must be ", k.sizes(), " of ", k.scalar_type(), " on ", k.device(), " as k is, got ",
      v.sizes(), " of ", v.scalar_type(), " on ", v.device());
  check_rotary(kOp, inputs.rotary, q);
  MMLAPLACE_CHECK(!inputs.rotary.has_value() || queries == keys, kOp,
                  ": rotary needs as many queries as keys, got ", queries, " and ", keys);
  return {batch, heads, queries, keys, dims};
}

// What the backward gets besides: the gradient of the result, and what the forward returned.
inline void check_gradient(const Sizes& sizes, const Tensor& grad, const Tensor& q,
                           const Tensor& means, const Tensor& log_sums) {
  MMLAPLACE_CHECK(grad.sizes() == q.sizes() && grad.scalar_type() == q.scalar_type() &&
                      grad.device() == q.device(),
                  kOp, ": the gradient must be ", q.sizes(), " of ", q.scalar_type(), " on ",
                  q.device(), " as q is, got ", grad.sizes(), " of ", grad.scalar_type(), " on ",
                  grad.device());
  MMLAPLACE_CHECK(means.sizes() == q.sizes() && means.scalar_type() == wide(q.scalar_type()) &&
                      means.device() == q.device(),
                  kOp, ": means must be those of the forward, ", q.sizes(), " of ",
                  wide(q.scalar_type()), " on ", q.device(), ", got ", means.sizes(), " of ",
                  means.scalar_type(), " on ", means.device());
  MMLAPLACE_CHECK(log_sums.sizes().equals({sizes.batch, sizes.heads, sizes.queries}) &&
                      log_sums.scalar_type() == wide(q.scalar_type()) &&
                      log_sums.device() == q.device(),
                  kOp, ": log_sums must be those of the forward, (B, heads, N) of ",
                  wide(q.scalar_type()), " on ", q.device(), ", got ", log_sums.sizes(), " of ",
                  log_sums.scalar_type(), " on ", log_sums.device());
}

// The op on a device.
template <class Device, class Metric>
struct Attention {
  static Results forward(const Tensor& q, const Tensor& k, const Tensor& v, const Inputs& inputs);
  static Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Inputs& inputs, const Tensor& means, const Tensor& log_sums);
};

template <class Device>
Results forward(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& rotary,
                StringView kernel, double bandwidth, StringView form) {
  const Inputs inputs{rotary, bandwidth, is_adjacent(kOp, form)};
  Results results;
  nystrom::with_metric(kOp, kernel, bandwidth, [&](auto metric) {
    results = Attention<Device, decltype(metric)>::forward(q, k, v, inputs);
  });
  return results;
}

template <class Device>
Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                   const OptionalTensor& rotary, const Tensor& means, const Tensor& log_sums,
                   StringView kernel, double bandwidth, StringView form) {
  const Inputs inputs{rotary, bandwidth, is_adjacent(kOp, form)};
  Gradients gradients;
  nystrom::with_metric(kOp, kernel, bandwidth, [&](auto metric) {
    gradients =
        Attention<Device, decltype(metric)>::backward(grad, q, k, v, inputs, means, log_sums);
  });
  return gradients;
}

}  // namespace exact
}  // namespace mmlaplace
