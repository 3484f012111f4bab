// The host code of linear_attention on a GPU: two passes over tokens forward, and two backward.
//
// `Device` launches the kernels, see common/cuda/launch.h. There is no other CUDA here, so that
// tests can run this on a CPU.
#pragma once

#include "../common/tensor.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "../common/cuda/token_source.h"
#include "linear_attention.h"
#include "linear_attention_device.cuh"

namespace mmlaplace {
namespace linear {

using MemoryOf = device::Memory (*)(int64_t f, int64_t d, bool tops, int streams);

template <class Device, int Tokens, class S>
class Passes {
  using T = Wide<S>;
  using Pass = device::Pass<S, T>;
  using FmaUnits = device::FmaUnits;
  using Operand =
      std::conditional_t<std::is_same<S, T>::value, token_tiles::Tf32, token_tiles::Bf16>;
  using TensorCores = std::conditional_t<Tokens == device::kTokens, device::TensorCores<Operand>,
                                         FmaUnits>;  // small tiles have none

 public:
  // The shared memory that a block of a pass needs.
  static int64_t bytes_of(const Sizes& sizes, const Inputs& inputs, MemoryOf memory_of) {
    const device::Memory memory =
        memory_of(sizes.features, sizes.dims, inputs.top_q.has_value(), inputs.streams);
    return (memory.rows * token_tiles::kPitch<Tokens> + memory.values) *
           static_cast<int64_t>(sizeof(T));
  }

  Passes(const Device& device, const Sizes& sizes, const Inputs& inputs, ScalarType type)
      : device_(device), sizes_(sizes), inputs_(inputs), type_(type) {}

  Results forward(const Tensor& q, const Tensor& k, const Tensor& v) const {
    const Tensor kept =
        empty({sizes_.batch, sizes_.heads, sizes_.features, sizes_.dims + 1}, q, type_of<T>());
    const Tensor out = tokens_like(q, sizes_.dims);
    const Parts of_keys = parts_of(sizes_.keys), of_queries = parts_of(sizes_.queries);
    const Tensor sums = sums_of(of_keys, q);
    launch(device::key_sums_kernel<Tokens, S, T, FmaUnits>,
           device::key_sums_kernel<Tokens, S, T, TensorCores>, device::Memory::key_sums, of_keys, k,
           inputs_.top_k, v, sums.template data_ptr<T>());
    launch(device::outputs_kernel<Tokens, S, T, FmaUnits>,
           device::outputs_kernel<Tokens, S, T, TensorCores>, device::Memory::outputs, of_queries,
           q, inputs_.top_q, q, static_cast<const T*>(sums.template data_ptr<T>()), of_keys.count,
           share(), kept.template data_ptr<T>(), out.template data_ptr<S>());
    return {by_head(out), kept};
  }

  // The gradients of q, k, v and the numerators.
  Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& kept) const {
    const bool tops = inputs_.top_q.has_value();
    const Tensor dq = tokens_like(q, sizes_.features), dk = tokens_like(k, sizes_.features);
    const Tensor dv = tokens_like(v, sizes_.dims);
    const Tensor dtop_q = tokens_like(q, tops ? sizes_.features : 0);
    const Tensor dtop_k = tokens_like(k, tops ? sizes_.features : 0);
    const Parts of_keys = parts_of(sizes_.keys), of_queries = parts_of(sizes_.queries);
    const Tensor sums = sums_of(of_queries, q);
    launch(device::query_gradients_kernel<Tokens, S, T, FmaUnits>,
           device::query_gradients_kernel<Tokens, S, T, TensorCores>,
           device::Memory::query_gradients, of_queries, q, inputs_.top_q, grad,
           static_cast<const T*>(kept.template data_ptr<T>()), dq.template data_ptr<S>(),
           dtop_q.template data_ptr<S>(), sums.template data_ptr<T>());
    launch(device::key_gradients_kernel<Tokens, S, T, FmaUnits>,
           device::key_gradients_kernel<Tokens, S, T, TensorCores>, device::Memory::key_gradients,
           of_keys, k, inputs_.top_k, v, static_cast<const T*>(sums.template data_ptr<T>()),
           of_queries.count, share(), dk.template data_ptr<S>(), dtop_k.template data_ptr<S>(),
           dv.template data_ptr<S>());
    return {by_head(dq), by_head(dk), by_head(dv), by_head(dtop_q), by_head(dtop_k)};
  }

 private:
  const Device& device_;
  const Sizes sizes_;
  const Inputs inputs_;
  const ScalarType type_;

  // How the tokens of a head are divided: for about 512 blocks in all, into parts of at least 256
  // tokens, and at most 16 of them, as each block of the next pass reads the sums of all parts. The
  // shapes alone decide it, so that results are the same on every GPU with room for the same tiles.
  struct Parts {
    int64_t count, length, tokens;
  };
  Parts parts_of(int64_t tokens) const {
    const int64_t heads = std::max<int64_t>(1, sizes_.batch_heads());
    const int64_t wanted = std::min<int64_t>(16, ceil_div(512, heads));
    const int64_t length =
        std::max<int64_t>(256, ceil_div(ceil_div(tokens, wanted), Tokens) * Tokens);
    return {std::max<int64_t>(1, ceil_div(tokens, length)), length, tokens};
  }
  T share() const { return T(1) / static_cast<T>(sizes_.keys); }

  // A place for the sums of each part.
  Tensor sums_of(const Parts& parts, const Tensor& like) const {
    return empty({sizes_.batch_heads(), parts.count, sizes_.features, sizes_.dims + 1}, like,
                 type_of<T>());
  }

  template <class Kernel, class... Arguments>
  void launch(Kernel kernel, Kernel for_tensor_cores, MemoryOf memory_of, const Parts& parts,
              const Tensor& tokens, const OptionalTensor& numerator, const Tensor& values,
              Arguments... arguments) const {
    const int64_t blocks = sizes_.batch_heads() * parts.count;
    if (blocks == 0) return;
    const Tensor tops = numerator.has_value() ? numerator->to(type_) : Tensor();
    const bool tops_given = tops.defined();
    Pass pass{token_tiles::source_of<S>(tokens),
              tops_given ? token_tiles::source_of<S>(tops) : token_tiles::Source<S>{},
              token_tiles::source_of<S>(values),
              nullptr,
              sizes_.heads,
              parts.tokens,
              parts.count,
              parts.length,
              inputs_.features,
              {inputs_.streams, static_cast<int>(sizes_.features), static_cast<int>(sizes_.dims)},
              static_cast<T>(inputs_.eps)};
    int64_t bytes = bytes_of(sizes_, inputs_, memory_of);
    Tensor memory;
    if (bytes > device_.shared_memory()) {
      memory = empty({blocks * bytes / static_cast<int64_t>(sizeof(T))}, tokens, type_of<T>());
      pass.memory = memory.template data_ptr<T>();
      bytes = 0;
    }
    if (for_tensor_cores != kernel && device_.tensor_cores(for_tensor_cores)) {
      kernel = for_tensor_cores;
    }
    device_.launch("linear_attention", kernel, blocks, token_tiles::kThreads, bytes, pass,
                   memory_of(sizes_.features, sizes_.dims, tops_given, inputs_.streams),
                   arguments...);
  }
};

// Calls f(passes, dtype) with the passes for tokens of this dtype. If the widest of them has no
// room for its tiles in shared memory, these are the passes with small tiles and without halves.
template <class Device, class F>
void with_passes(const Device& device, const Sizes& sizes, ScalarType type, const Inputs& inputs,
                 MemoryOf widest, const F& f) {
  MMLAPLACE_DISPATCH(type, "linear_attention", [&] {
    using T = Wide<scalar_t>;
    if constexpr (std::is_same<T, float>::value) {
      using Fast = Passes<Device, device::kTokens, scalar_t>;
      if (Fast::bytes_of(sizes, inputs, widest) <= device.shared_memory()) {
        return f(Fast(device, sizes, inputs, type), type);
      }
    }
    f(Passes<Device, device::kFewTokens, T>(device, sizes, inputs, type_of<T>()), type_of<T>());
  });
}

template <class Device>
Results forward(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& top_q,
                const OptionalTensor& top_k, double eps, StringView features, int64_t streams) {
  const Inputs inputs = inputs_of(top_q, top_k, eps, features, streams);
  const Sizes sizes = check(q, k, v, inputs);
  const Device gpu(q);
  Results results;
  with_passes(gpu, sizes, q.scalar_type(), inputs, device::Memory::outputs,
              [&](const auto& passes, ScalarType type) {
                results = passes.forward(q.to(type), k.to(type), v.to(type));
              });
  return {std::get<0>(results).to(q.scalar_type()), std::get<1>(results)};
}

template <class Device>
Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                   const OptionalTensor& top_q, const OptionalTensor& top_k, const Tensor& sums,
                   double eps, StringView features, int64_t streams) {
  const Inputs inputs = inputs_of(top_q, top_k, eps, features, streams);
  const Sizes sizes = check(q, k, v, inputs);
  check_gradient(sizes, grad, q, sums);
  const Device gpu(q);
  Gradients gradients;
  with_passes(gpu, sizes, q.scalar_type(), inputs, device::Memory::query_gradients,
              [&](const auto& passes, ScalarType type) {
                gradients = passes.backward(grad.to(type), q.to(type), k.to(type), v.to(type),
                                            sums.contiguous());
              });
  auto& [dq, dk, dv, dtop_q, dtop_k] = gradients;
  const ScalarType type = q.scalar_type();
  return {dq.to(type), dk.to(type), dv.to(type), dtop_q.to(type), dtop_k.to(type)};
}

}  // namespace linear
}  // namespace mmlaplace
