// CPU kernels of differences: forward and backward, for any metric of metrics.h.
//
// Inputs may have any strides and dtype. They are copied into small buffers, a block of queries at
// a time. S is the type of the values in memory; T is the type of the buffers and of all sums, fp64
// for fp64 and fp32 for the rest. The loops over the buffers are in pairwise_vector.h.
#pragma once

#include "../tensor.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <type_traits>
#include <vector>

#include "../metrics.h"
#include "../pairwise.h"
#include "arrays.h"
#include "subnormals.h"

namespace mmlaplace {

// Queries in a block, and queries in registers at once.
constexpr int64_t kBlock = 24, kRows = 3;
// In the backward pass: keys in registers at once, and keys that stay in the first cache.
constexpr int64_t kGradientKeys = 2, kKeyBlock = 64;

template <class T, class S>
struct ForwardBlock {
  Slice<const S> queries;  // its first row is the first query of the block
  const T* panels;         // [ceil(keys / lanes)][dims][lanes]
  T* packed;               // [kBlock][dims], scratch
  T* distances;            // [kBlock][ceil(keys / lanes) * lanes], scratch
  S* out;                  // [rows][keys]
  int64_t rows, keys, dims;
  T exponent;  // the kernel is 2^(exponent * distance)
};

template <class T, class S>
struct BackwardBlock {
  Slice<const S> queries, grad, out;  // their first row is that of the first query of the block
  const T* keys;                      // [padded_keys][padded]
  T* packed;                          // [kBlock][padded], scratch
  T* weights;      // [kBlock][padded_keys], scratch: derivative * grad * out, and zeros
  T* query_sums;   // [kBlock][padded], scratch
  T* key_sums;     // [padded_keys][padded], the block is added
  S* query_grads;  // [rows][dims]
  int64_t rows, num_keys, dims;
  T derivative;
};

}  // namespace mmlaplace

#define MMLAPLACE_KERNELS "pairwise_vector.h"
#include "cpu_dispatch.h"

namespace mmlaplace {
namespace cpu {

template <class Metric>
Tensor pairwise_forward(const Tensor& q, const Tensor& k, double bandwidth) {
  const PairwiseSizes sizes = check_pairwise(Metric::name, q, k);
  check_bandwidth<Metric>(Metric::name, bandwidth);
  Tensor out = empty({sizes.batch, sizes.heads, sizes.queries, sizes.keys}, q);
  if (out.numel() == 0) return out;
  const int64_t blocks = ceil_div(sizes.queries, kBlock);
  MMLAPLACE_DISPATCH(q.scalar_type(), "mmlaplace_pairwise", [&] {
    using T = Wide<scalar_t>;
    const int64_t padded = round_up(sizes.keys, vector_bytes() / sizeof(T));
    host::parallel_for(sizes.batch_heads() * blocks, 16, [&](int64_t begin, int64_t end) {
      const SubnormalsAsZeros zeros_here;
      // The loops also run over the padding, which must hold numbers.
      std::vector<T> panels(padded * sizes.dims), packed(kBlock * sizes.dims),
          distances(kBlock * padded);
      int64_t in_panels = -1;
      for (int64_t index = begin; index < end; ++index) {
        const int64_t batch_head = index / blocks, first = index % blocks * kBlock;
        if (batch_head != in_panels) {
          MMLAPLACE_FOR_CPU(pack_panels(slice<const scalar_t>(k, batch_head), sizes.keys,
                                        sizes.dims, panels.data()));
          in_panels = batch_head;
        }
        const ForwardBlock<T, scalar_t> block{
            slice<const scalar_t>(q, batch_head).from(first),
            panels.data(),
            packed.data(),
            distances.data(),
            slice<scalar_t>(out, batch_head).row(first),
            std::min(kBlock, sizes.queries - first),
            sizes.keys,
            sizes.dims,
            static_cast<T>(Metric::exponent(bandwidth) / std::log(2.0))};
        MMLAPLACE_FOR_CPU(forward_block<Metric>(block));
      }
    });
  });
  return out;
}

template <class Metric>
std::tuple<Tensor, Tensor> pairwise_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                             const Tensor& out, double bandwidth) {
  const PairwiseSizes sizes = check_pairwise_backward(Metric::backward_name, grad, q, k, out);
  check_bandwidth<Metric>(Metric::backward_name, bandwidth);
  Tensor query_grad = empty(q.sizes(), q);
  if (out.numel() == 0 || sizes.dims == 0) {
    return {query_grad.zero_(), zeros(k.sizes(), k)};
  }
  const int64_t chunk = gradient_chunk(sizes), chunks = ceil_div(sizes.queries, chunk);
  Tensor key_grad;
  MMLAPLACE_DISPATCH(q.scalar_type(), "mmlaplace_pairwise", [&] {
    using T = Wide<scalar_t>;
    const int64_t padded = round_up(sizes.dims, vector_bytes() / sizeof(T));
    const int64_t padded_keys = round_up(sizes.keys, kGradientKeys);
    // Each chunk of queries has its own sums for the keys, which are added in order below.
    Tensor partial = empty({chunks, sizes.batch_heads(), sizes.keys, sizes.dims}, q, type_of<T>());
    host::parallel_for(sizes.batch_heads() * chunks, 1, [&](int64_t begin, int64_t end) {
      const SubnormalsAsZeros zeros_here;
      std::vector<T> keys(padded_keys * padded), key_sums(padded_keys * padded),
          weights(kBlock * padded_keys);
      std::vector<T> packed(kBlock * padded), query_sums(kBlock * padded);
      for (int64_t index = begin; index < end; ++index) {
        const int64_t batch_head = index / chunks, part = index % chunks;
        MMLAPLACE_FOR_CPU(pack_rows(slice<const scalar_t>(k, batch_head), sizes.keys, sizes.dims,
                                    keys.data(), padded));
        std::fill(key_sums.begin(), key_sums.end(), T(0));
        const int64_t stop = std::min((part + 1) * chunk, sizes.queries);
        for (int64_t first = part * chunk; first < stop; first += kBlock) {
          const BackwardBlock<T, scalar_t> block{
              slice<const scalar_t>(q, batch_head).from(first),
              slice<const scalar_t>(grad, batch_head).from(first),
              slice<const scalar_t>(out, batch_head).from(first),
              keys.data(),
              packed.data(),
              weights.data(),
              query_sums.data(),
              key_sums.data(),
              slice<scalar_t>(query_grad, batch_head).row(first),
              std::min(kBlock, stop - first),
              sizes.keys,
              sizes.dims,
              static_cast<T>(Metric::derivative(bandwidth))};
          MMLAPLACE_FOR_CPU(backward_block<Metric>(block));
        }
        T* sums = partial.data_ptr<T>() +
                  (part * sizes.batch_heads() + batch_head) * sizes.keys * sizes.dims;
        for (int64_t j = 0; j < sizes.keys; ++j) {
          std::copy_n(key_sums.data() + j * padded, sizes.dims, sums + j * sizes.dims);
        }
      }
    });
    key_grad = (chunks == 1 ? partial : partial.sum(0)).view(k.sizes()).to(q.scalar_type());
  });
  return {query_grad, key_grad};
}

}  // namespace cpu
}  // namespace mmlaplace
