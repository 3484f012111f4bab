// The checks and sizes that the CPU and CUDA sources of a kernel of differences share.
//
// The kernel is K (B, heads, N, M) of q (B, heads, N, d) and k (B, heads, M, d).
#pragma once

#include "tensor.h"

#include "metrics.h"
#include "strided.h"

namespace mmlaplace {

struct PairwiseSizes {
  int64_t batch, heads, queries, keys, dims;
  int64_t batch_heads() const { return batch * heads; }
};

template <class Metric>
void check_bandwidth(const char* op, double bandwidth) {
  check_positive(op, "bandwidth", bandwidth);
  MMLAPLACE_CHECK(bandwidth >= Metric::smallest(), op, ": bandwidth must be at least ",
                  Metric::smallest(), ", below which the exponent is infinite in fp32, got ",
                  bandwidth);
}

inline PairwiseSizes check_pairwise(const char* op, const Tensor& q, const Tensor& k) {
  MMLAPLACE_CHECK(q.dim() == 4 && k.dim() == 4, op,
                  ": q and k must be (B, heads, N, d), got shapes ", q.sizes(), " and ", k.sizes());
  MMLAPLACE_CHECK(q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3), op,
                  ": q ", q.sizes(), " and k ", k.sizes(),
                  " must agree in every axis but the third");
  check_floating(op, "q", q);
  MMLAPLACE_CHECK(q.scalar_type() == k.scalar_type() && q.device() == k.device(), op, ": q (",
                  q.scalar_type(), ", ", q.device(), ") and k (", k.scalar_type(), ", ", k.device(),
                  ") must share dtype and device");
  return {q.size(0), q.size(1), q.size(2), k.size(2), q.size(3)};
}

inline PairwiseSizes check_pairwise_backward(const char* op, const Tensor& grad, const Tensor& q,
                                             const Tensor& k, const Tensor& out) {
  const PairwiseSizes sizes = check_pairwise(op, q, k);
  const IntArrayRef expected[] = {grad.sizes(), out.sizes()};
  for (const IntArrayRef shape : expected) {
    MMLAPLACE_CHECK(shape.equals({sizes.batch, sizes.heads, sizes.queries, sizes.keys}), op,
                    ": grad and out must be (B, heads, N, M) of q ", q.sizes(), " and k ",
                    k.sizes(), ", got ", grad.sizes(), " and ", out.sizes());
  }
  for (const Tensor& tensor : {grad, out}) {
    MMLAPLACE_CHECK(tensor.scalar_type() == q.scalar_type() && tensor.device() == q.device(), op,
                    ": grad and out must be ", q.scalar_type(), " on ", q.device(),
                    " as q is, got ", tensor.scalar_type(), " on ", tensor.device());
  }
  return sizes;
}

inline Strides strides_of(const Tensor& tensor) {
  return {tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3)};
}

template <class T>
View<T> view(const Tensor& tensor) {
  return {static_cast<T*>(tensor.data_ptr()), strides_of(tensor), tensor.size(1)};
}
template <class T>
Slice<T> slice(const Tensor& tensor, int64_t batch_head) {
  return view<T>(tensor).slice(batch_head);
}

// The number of queries in a chunk. The gradient of k is summed chunk by chunk, and then over the
// chunks. The length depends on the shapes alone, so that results do not depend on the number of
// threads. It is chosen so that the sums of all chunks, M * d each, take about 3 % of the memory of
// the N * M output (4 % if the last chunk is short, as with 3,136 queries).
inline int64_t gradient_chunk(const PairwiseSizes& sizes) {
  const int64_t chunk = sizes.dims * 32;
  return chunk < 256 ? 256 : chunk;
}

}  // namespace mmlaplace
