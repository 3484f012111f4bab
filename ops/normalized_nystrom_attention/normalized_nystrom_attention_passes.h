// The host code of normalized_nystrom_attention on a GPU: the passes over tokens of
// normalized_nystrom_attention_device.cuh. Blocks, parts and matrices are those of
// nystrom_attention_passes.h, which also says what `Device` is.
#pragma once

#include "../nystrom_attention/nystrom_attention_passes.h"
#include "normalized_nystrom_attention.h"
#include "normalized_nystrom_attention_device.cuh"

namespace mmlaplace {
namespace normalized_nystrom {

template <class Device, class Metric, int Tokens, class S>
class Passes : nystrom::Passes<Device, Metric, Tokens, S> {
  using Base = nystrom::Passes<Device, Metric, Tokens, S>;
  using T = Wide<S>;
  using typename Base::Parts;

 public:
  using Base::bytes_of;

  Passes(const Device& device, const Sizes& sizes, const nystrom::Inputs& inputs, double floor)
      : Base(device, sizes, inputs),
        marks_n_(sizes.marks),
        dims_(sizes.dims),
        extended_(device::extended_channels(sizes.dims)),
        floor_(static_cast<T>(floor)) {}

  Results forward(const Tensor& q, const Tensor& k, const Tensor& v) const {
    this->prepare();
    const Tensor inverse = this->of_heads(this->inputs_.inverse);
    const Tensor mixed = this->place(marks_n_, dims_), key_sum = this->place(marks_n_);
    Tensor result = empty({this->heads_, this->m_, extended_}, this->marks_);
    const Parts key_parts = this->parts_of(this->sizes_.keys);
    const Tensor sums = empty({this->heads_, key_parts.count, this->m_ * extended_}, this->marks_);
    this->launch(device::key_sums_kernel<Metric, Tokens, S, T>, key_parts, device::Rows::forward,
                 this->pass(k, key_parts, v, this->tickets_.template data_ptr<int>()),
                 this->pointer(sums),
                 device::Joiner<T>{this->matrices(inverse), this->pointer(mixed),
                                   this->pointer(key_sum), this->pointer(result)});
    if (!this->joined_) {
      const Tensor total = this->piece(sums.sum(1), 0, this->m_, extended_);
      mixed.copy_(this->cut(total, marks_n_, dims_));
      key_sum.copy_(column_of(total));
      result = this->product(this->padded(this->inputs_.inverse, this->m_, this->m_), total);
    }
    const Tensor out = this->tokens_like(q);
    const Parts parts = this->parts_of(this->sizes_.queries);
    this->launch(device::normalized_output_kernel<Metric, Tokens, S, T>, parts,
                 device::Rows::forward, this->pass(q, parts), this->pointer(result), floor_,
                 out.template data_ptr<S>());
    return {nystrom::by_head(out), key_sum, mixed};
  }
  // For outputs without a value.
  Results empty_forward(const Tensor& q) const {
    return {nystrom::by_head(this->tokens_like(q)), this->zeros(marks_n_),
            this->zeros(marks_n_, dims_)};
  }

  // The gradients of q, k, v, the landmarks and the inverse, by the formulas of the CPU
  // (normalized_nystrom_attention_backward.h).
  Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& key_sum, const Tensor& mixed) const {
    this->prepare();
    const int64_t m = this->m_, size = m * this->d_;
    const Tensor inverse = this->padded(this->inputs_.inverse, m, m),
                 summed = joined(mixed, key_sum);
    const Tensor result = this->product(inverse, summed);
    const Tensor dq = this->tokens_like(q), dk = this->tokens_like(k), dv = this->tokens_like(v);

    const Parts query_parts = this->parts_of(this->sizes_.queries);
    const Tensor query_sums = this->sums(query_parts, size + m * extended_);
    const Tensor transposed = result.transpose(1, 2).contiguous();
    this->launch(device::normalized_query_gradients_kernel<Metric, Tokens, S, T>, query_parts,
                 device::Rows::query_gradients, this->pass(q, query_parts, grad),
                 device::ExtendedMatrices<T>{this->pointer(result), this->pointer(transposed)},
                 floor_, dq.template data_ptr<S>(), this->pointer(query_sums));
    const Tensor by_queries = query_sums.sum(1);
    const Tensor dresult = this->piece(by_queries, size, m, extended_).contiguous();
    const Tensor dinverse = this->product(dresult, summed.transpose(1, 2));
    const Tensor dsummed = this->product(inverse.transpose(1, 2), dresult);

    const Parts key_parts = this->parts_of(this->sizes_.keys);
    const Tensor key_sums = this->sums(key_parts, size);
    const Tensor dsummed_transposed = dsummed.transpose(1, 2).contiguous();
    this->launch(
        device::normalized_key_gradients_kernel<Metric, Tokens, S, T>, key_parts,
        device::Rows::key_gradients, this->pass(k, key_parts, v),
        device::ExtendedMatrices<T>{this->pointer(dsummed), this->pointer(dsummed_transposed)},
        dk.template data_ptr<S>(), dv.template data_ptr<S>(), this->pointer(key_sums));
    const Tensor dmarks =
        this->piece(by_queries, 0, m, this->d_) + this->piece(key_sums.sum(1), 0, m, this->d_);
    return {nystrom::by_head(dq), nystrom::by_head(dk), nystrom::by_head(dv),
            this->cut(dmarks, marks_n_, dims_), this->cut(dinverse, marks_n_, marks_n_)};
  }
  Gradients empty_backward(const Tensor& q, const Tensor& k) const {
    const Tensor dk = this->tokens_like(k).zero_();
    return {nystrom::by_head(this->tokens_like(q)), nystrom::by_head(dk),
            nystrom::by_head(dk.clone()), this->zeros(marks_n_, dims_),
            this->zeros(marks_n_, marks_n_)};
  }

 private:
  const int64_t marks_n_, dims_, extended_;
  const T floor_;

  // The column of ones of (batch_heads, padded m, extended), as (B, heads, m).
  Tensor column_of(const Tensor& matrices) const {
    return matrices.narrow(1, 0, marks_n_)
        .narrow(2, dims_, 1)
        .contiguous()
        .view(IntArrayRef{this->sizes_.batch, this->sizes_.heads, marks_n_});
  }
  // [mixed, key_sum] with zeros beyond, (batch_heads, padded m, extended).
  Tensor joined(const Tensor& mixed, const Tensor& key_sum) const {
    const Tensor joined = mmlaplace::zeros(
        {this->sizes_.batch, this->sizes_.heads, this->m_, extended_}, mixed, type_of<T>());
    const Tensor rows = joined.narrow(2, 0, marks_n_);
    rows.narrow(3, 0, dims_).copy_(mixed);
    rows.narrow(3, dims_, 1).copy_(key_sum.unsqueeze(3));
    return joined.view(IntArrayRef{this->heads_, this->m_, extended_});
  }
};

// Calls f(passes, dtype) with the passes for tokens of this dtype, see nystrom::with_passes.
template <class Metric, class Device, class F>
void with_passes(const Device& device, const Sizes& sizes, ScalarType type, const Inputs& inputs,
                 nystrom::RowsOf widest, const F& f) {
  const nystrom::Inputs of_tokens = inputs.of_tokens();
  MMLAPLACE_DISPATCH(type, kOp, [&] {
    using T = Wide<scalar_t>;
    if constexpr (std::is_same<T, float>::value) {
      using Fast = Passes<Device, Metric, device::kTokens, scalar_t>;
      if (Fast::bytes_of(sizes, widest) <= device.shared_memory()) {
        return f(Fast(device, sizes, of_tokens, inputs.floor), type);
      }
    }
    f(Passes<Device, Metric, device::kFewTokens, T>(device, sizes, of_tokens, inputs.floor),
      type_of<T>());
  });
}

inline Sizes check_for_gpu(const Tensor& q, const Tensor& k, const Tensor& v,
                           const Inputs& inputs) {
  const Sizes sizes = check(q, k, v, inputs);
  // The kernels count the values of a matrix in 32 bits.
  MMLAPLACE_CHECK(sizes.marks <= 32768 && sizes.dims < 32768, kOp,
                  ": on a GPU there can be at most 32768 landmarks and 32767 channels, got ",
                  sizes.marks, " and ", sizes.dims);
  return sizes;
}

template <class Device, class Metric>
Results Attention<Device, Metric>::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Inputs& inputs) {
  const Sizes sizes = check_for_gpu(q, k, v, inputs);
  const Device gpu(q);
  Results results;
  with_passes<Metric>(gpu, sizes, q.scalar_type(), inputs, device::Rows::forward,
                      [&](const auto& passes, ScalarType type) {
                        results = q.numel() > 0 ? passes.forward(q.to(type), k.to(type), v.to(type))
                                                : passes.empty_forward(q);
                      });
  std::get<0>(results) = std::get<0>(results).to(q.scalar_type());
  return results;
}

template <class Device, class Metric>
Gradients Attention<Device, Metric>::backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                              const Tensor& v, const Inputs& inputs,
                                              const Tensor& key_sum, const Tensor& mixed) {
  const Sizes sizes = check_for_gpu(q, k, v, inputs);
  check_gradient(sizes, grad, q, key_sum, mixed);
  const Device gpu(q);
  Gradients gradients;
  with_passes<Metric>(gpu, sizes, q.scalar_type(), inputs, device::Rows::backward,
                      [&](const auto& passes, ScalarType type) {
                        gradients = q.numel() > 0
                                        ? passes.backward(grad.to(type), q.to(type), k.to(type),
                                                          v.to(type), key_sum, mixed)
                                        : passes.empty_backward(q, k);
                      });
  auto& [dq, dk, dv, dlandmarks, dinverse] = gradients;
  return {dq.to(q.scalar_type()), dk.to(q.scalar_type()), dv.to(q.scalar_type()),
          dlandmarks.to(inputs.landmarks.scalar_type()), dinverse.to(inputs.inverse.scalar_type())};
}

}  // namespace normalized_nystrom
}  // namespace mmlaplace
