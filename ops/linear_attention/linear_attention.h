// What the CPU and CUDA sources of linear_attention share: the op, its inputs and checks.
//
//   A = mean over j of [k~_j^T v_j, k_j^T] (f, d + 1), and of its columns S the first d, m the last
//   out_i = (q~_i S) / (q_i m + eps)
//
// q and k are features of the inputs. q~ and k~ are the same, or numerators that are given.
// mmlaplace/ops/linear_attention.py has the specification, docs/developers/linear_attention.md the
// passes.
#pragma once

#include "../common/tensor.h"

#include <tuple>

#include "../common/pairwise.h"
#include "linear_attention_rules.h"

namespace mmlaplace {
namespace linear {

using Results = std::tuple<Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

struct Sizes {
  int64_t batch, heads, queries, keys, features, dims;
  int64_t batch_heads() const { return batch * heads; }
};

// What a call gets besides its tokens.
struct Inputs {
  OptionalTensor top_q, top_k;
  double eps;
  Features features;
  int streams;
};

inline Inputs inputs_of(const OptionalTensor& top_q, const OptionalTensor& top_k, double eps,
                        StringView features, int64_t streams) {
  const char* op = "linear_attention";
  check_not_negative(op, "eps", eps);
  MMLAPLACE_CHECK(features == "none" || features == "relu" || features == "elu_plus_one", op,
                  ": features must be none, relu or elu_plus_one, got ", features);
  MMLAPLACE_CHECK(streams == 1 || streams == 2, op, ": streams must be 1 or 2, got ", streams);
  MMLAPLACE_CHECK(top_q.has_value() == top_k.has_value(), op,
                  ": a numerator needs both top_q and top_k, got one");
  return {top_q, top_k, eps,
          features == "none"   ? Features::none
          : features == "relu" ? Features::relu
                               : Features::elu_plus_one,
          static_cast<int>(streams)};
}

inline Sizes check(const Tensor& q, const Tensor& k, const Tensor& v, const Inputs& inputs) {
  const char* op = "linear_attention";
  const PairwiseSizes pairs = check_pairwise(op, q, k);
  MMLAPLACE_CHECK(
      v.dim() == 4 && v.size(0) == pairs.batch && v.size(1) == pairs.heads &&
          v.size(2) == pairs.keys && v.scalar_type() == q.scalar_type() && v.device() == q.device(),
      op, ": v must be (B, heads, n, d) of ", q.scalar_type(), " on ", q.device(), " for k ",
      k.sizes(), ", got ", v.sizes(), " of ", v.scalar_type(), " on ", v.device());
  if (inputs.top_q.has_value()) {
    const Tensor given[] = {*inputs.top_q, *inputs.top_k}, like[] = {q, k};
    for (int i = 0; i < 2; ++i) {
      MMLAPLACE_CHECK(
          given[i].sizes() == like[i].sizes() && given[i].scalar_type() == q.scalar_type() &&
              given[i].device() == q.device(),
          op, ": the numerator must be ", q.scalar_type(), " ", like[i].sizes(), " on ", q.device(),
          ", got ", given[i].scalar_type(), " ", given[i].sizes(), " on ", given[i].device());
    }
  }
  MMLAPLACE_CHECK(inputs.streams == 1 || pairs.dims % 2 == 0, op,
                  ": two streams exchange halves of the features, and there are ", pairs.dims);
  // Matrices of f x (d + 1) values are counted in 32 bits.
  MMLAPLACE_CHECK(pairs.dims <= 32768 && v.size(3) <= 32768, op,
                  ": there can be at most 32768 features and channels, got ", pairs.dims, " and ",
                  v.size(3));
  return {pairs.batch, pairs.heads, pairs.queries, pairs.keys, pairs.dims, v.size(3)};
}

// What the backward gets besides: the gradient of the result, and the sums of the forward.
inline void check_gradient(const Sizes& sizes, const Tensor& grad, const Tensor& q,
                           const Tensor& sums) {
  const char* op = "linear_attention";
  const auto [batch, heads, queries, keys, features, dims] = sizes;
  MMLAPLACE_CHECK(grad.sizes().equals({batch, heads, queries, dims}) &&
                      grad.scalar_type() == q.scalar_type() && grad.device() == q.device(),
                  op, ": the gradient must be (B, heads, N, d) of ", q.scalar_type(), " on ",
                  q.device(), ", got ", grad.sizes(), " of ", grad.scalar_type(), " on ",
                  grad.device());
  MMLAPLACE_CHECK(sums.sizes().equals({batch, heads, features, dims + 1}) &&
                      sums.scalar_type() == wide(q.scalar_type()) && sums.device() == q.device(),
                  op, ": sums ", sums.sizes(), " of ", sums.scalar_type(),
                  " are not those of the forward");
}

// Tokens (B, N, heads, d) as (B, heads, N, d).
inline Tensor by_head(const Tensor& tokens) { return tokens.transpose(1, 2); }

// Empty tokens of that width, whose heads are side by side in memory.
inline Tensor tokens_like(const Tensor& tokens, int64_t width) {
  return empty({tokens.size(0), tokens.size(2), tokens.size(1), width}, tokens);
}

}  // namespace linear
}  // namespace mmlaplace
