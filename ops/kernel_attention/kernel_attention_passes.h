// The host code of kernel_attention on a GPU, see kernel_attention_device.cuh.
//
// `Device` launches the kernels, see common/cuda/launch.h. There is no other CUDA here, so that
// tests can run this on a CPU.
#pragma once

#include "../common/tensor.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "../common/cuda/token_source.h"
#include "kernel_attention.h"
#include "kernel_attention_device.cuh"

namespace mmlaplace {
namespace exact {

using RowsOf = int64_t (*)(int64_t d);

template <class Device, class Metric, int Tokens, class S>
class Passes {
  using T = Wide<S>;
  using Pass = device::Pass<S, T>;
  using Others = device::Others<S>;
  using Rows = device::Rows<Tokens>;

 public:
  // The shared memory that a block of the widest pass needs.
  static int64_t most_bytes(const Sizes& sizes, bool gradients) {
    return bytes_of(sizes, gradients ? Rows::key_gradients : Rows::forward);
  }

  Passes(const Device& device, const Sizes& sizes, const Inputs& inputs)
      : device_(device),
        sizes_(sizes),
        bandwidth_(inputs.bandwidth),
        adjacent_(inputs.adjacent),
        table_(wide<T>(inputs.rotary)) {}

  Results forward(const Tensor& q, const Tensor& k, const Tensor& v) const {
    const Tensor out = tokens_like(q), means = empty(out.sizes(), q, type_of<T>());
    const Tensor log_sums = empty({sizes_.batch, sizes_.heads, sizes_.queries}, q, type_of<T>());
    if (sizes_.keys == 0) {
      out.zero_(), means.zero_(), log_sums.zero_();
    } else {
      launch(device::forward_kernel<Metric, Tokens, S, T>, Rows::forward, q, Tensor(), others(k, v),
             out.template data_ptr<S>(), means.template data_ptr<T>(),
             log_sums.template data_ptr<T>());
    }
    return {by_head(out), by_head(means), log_sums};
  }

  Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& means, const Tensor& kept) const {
    const Tensor dq = tokens_like(q), dk = tokens_like(k), dv = tokens_like(v);
    const Tensor log_sums = kept.contiguous();
    const Tensor dots = empty(log_sums.sizes(), log_sums);
    launch(device::query_gradients_kernel<Metric, Tokens, S, T>, Rows::query_gradients, q, grad,
           others(k, v), token_tiles::source_of<T>(means), log_sums.template data_ptr<T>(),
           dots.template data_ptr<T>(), dq.template data_ptr<S>());
    launch(device::key_gradients_kernel<Metric, Tokens, S, T>, Rows::key_gradients, k, v,
           others(q, grad), log_sums.template data_ptr<T>(), dots.template data_ptr<T>(),
           dk.template data_ptr<S>(), dv.template data_ptr<S>());
    return {by_head(dq), by_head(dk), by_head(dv)};
  }

 private:
  const Device& device_;
  const Sizes sizes_;
  const double bandwidth_;
  const bool adjacent_;
  const Tensor table_;

  static int64_t bytes_of(const Sizes& sizes, RowsOf rows_of) {
    return rows_of(sizes.dims) * token_tiles::kPitch<Tokens> * static_cast<int64_t>(sizeof(T));
  }
  Tensor tokens_like(const Tensor& tokens) const {
    return empty({sizes_.batch, tokens.size(2), sizes_.heads, sizes_.dims}, tokens);
  }
  static Others others(const Tensor& tokens, const Tensor& values) {
    return {token_tiles::source_of<S>(tokens), token_tiles::source_of<S>(values), tokens.size(2)};
  }

  // A block has a tile. If tiles are in global memory, a block has several, for about 512 in all.
  int64_t length_of(int64_t tokens, bool shared) const {
    if (shared) return Tokens;
    const int64_t wanted = ceil_div(512, sizes_.batch_heads());
    return ceil_div(ceil_div(tokens, Tokens), wanted) * Tokens;
  }

  // Runs a kernel for `tokens`, with `values` of them if it needs these.
  template <class Kernel, class... Arguments>
  void launch(Kernel kernel, RowsOf rows_of, const Tensor& tokens, const Tensor& values,
              Arguments... arguments) const {
    if (tokens.numel() == 0) return;
    int64_t bytes = bytes_of(sizes_, rows_of);
    const bool shared = bytes <= device_.shared_memory();
    const int64_t count = tokens.size(2), length = length_of(count, shared);
    const int64_t parts = ceil_div(count, length), blocks = sizes_.batch_heads() * parts;
    Tensor memory;
    if (!shared) {
      memory = empty({blocks * bytes / static_cast<int64_t>(sizeof(T))}, tokens, type_of<T>());
      bytes = 0;
    }
    const Pass pass{token_tiles::source_of<S>(tokens),
                    values.defined() ? token_tiles::source_of<S>(values) : token_tiles::Source<S>{},
                    {table_.defined() ? table_.template data_ptr<T>() : nullptr, sizes_.queries,
                     table_.defined() ? static_cast<int>(table_.size(1)) : 0, adjacent_},
                    nullptr,
                    memory.defined() ? memory.template data_ptr<T>() : nullptr,
                    static_cast<T>(Metric::exponent(bandwidth_) / std::log(2.0)),
                    static_cast<T>(Metric::derivative(bandwidth_)),
                    sizes_.heads,
                    count,
                    parts,
                    length,
                    0,
                    static_cast<int>(sizes_.dims),
                    nullptr,
                    1};
    device_.launch(kOp, kernel, blocks, token_tiles::kThreads, bytes, pass, arguments...);
  }
};

// Calls f(passes, dtype) with the passes for tokens of this dtype. If the widest of them has no
// room for its tiles in shared memory, these are the passes with small tiles and without halves.
template <class Metric, class Device, class F>
void with_passes(const Device& device, const Sizes& sizes, ScalarType type, const Inputs& inputs,
                 bool gradients, const F& f) {
  // The kernels count the values of a tile in 32 bits.
  MMLAPLACE_CHECK(sizes.dims <= 32768, kOp, ": on a GPU there can be at most 32768 channels, got ",
                  sizes.dims);
  MMLAPLACE_DISPATCH(type, kOp, [&] {
    using T = Wide<scalar_t>;
    if constexpr (std::is_same<T, float>::value) {
      using Fast = Passes<Device, Metric, device::kTokens, scalar_t>;
      if (Fast::most_bytes(sizes, gradients) <= device.shared_memory()) {
        return f(Fast(device, sizes, inputs), type);
      }
    }
    f(Passes<Device, Metric, device::kFewTokens, T>(device, sizes, inputs), type_of<T>());
  });
}

template <class Device, class Metric>
Results Attention<Device, Metric>::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Inputs& inputs) {
  const Sizes sizes = check(q, k, v, inputs);
  const Device gpu(q);
  Results results;
  with_passes<Metric>(gpu, sizes, q.scalar_type(), inputs, false,
                      [&](const auto& passes, ScalarType type) {
                        results = passes.forward(q.to(type), k.to(type), v.to(type));
                      });
  std::get<0>(results) = std::get<0>(results).to(q.scalar_type());
  return results;
}

template <class Device, class Metric>
Gradients Attention<Device, Metric>::backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                              const Tensor& v, const Inputs& inputs,
                                              const Tensor& means, const Tensor& log_sums) {
  const Sizes sizes = check(q, k, v, inputs);
  check_gradient(sizes, grad, q, means, log_sums);
  const Device gpu(q);
  Gradients gradients;
  with_passes<Metric>(
      gpu, sizes, q.scalar_type(), inputs, true, [&](const auto& passes, ScalarType type) {
        gradients =
            passes.backward(grad.to(type), q.to(type), k.to(type), v.to(type), means, log_sums);
      });
  auto& [dq, dk, dv] = gradients;
  return {dq.to(q.scalar_type()), dk.to(q.scalar_type()), dv.to(q.scalar_type())};
}

}  // namespace exact
}  // namespace mmlaplace
