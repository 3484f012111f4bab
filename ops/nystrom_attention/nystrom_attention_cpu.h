// What the passes of nystrom_attention on a CPU share: buffers, the problem, threads. There is no
// ATen here, so that other hosts than PyTorch have these passes too.
//
// S is the type of q, k, v and the result in memory. T is the type of all buffers and sums, fp64
// for fp64 and fp32 for the rest.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "../common/cpu/arrays.h"
#include "../common/cpu/rotation.h"
#include "../common/cpu/subnormals.h"
#include "../common/metrics.h"
#include "nystrom_attention_sizes.h"

#define MMLAPLACE_KERNELS "../../nystrom_attention/nystrom_attention_vector.h"
#include "../common/cpu/cpu_dispatch.h"

namespace mmlaplace {
namespace nystrom {

template <class T>
int64_t lanes_of() {
  return vector_bytes() / static_cast<int64_t>(sizeof(T));
}

// Copies a matrix to rows of `stride`, with zeros.
template <class From, class To>
void matrix_in(const From* from, int64_t rows, int64_t columns, To* to, int64_t stride) {
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(from + i * columns, columns, to + i * stride);
    std::fill(to + i * stride + columns, to + (i + 1) * stride, To(0));
  }
}

template <class From, class To>
void matrix_out(const From* from, int64_t stride, int64_t rows, int64_t columns, To* to) {
  for (int64_t i = 0; i < rows; ++i) std::copy_n(from + i * stride, columns, to + i * columns);
}

template <class From, class To>
void transposed_in(const From* from, int64_t from_stride, int64_t rows, int64_t columns, To* to,
                   int64_t stride) {
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < rows; ++i) to[j * stride + i] = from[i * from_stride + j];
    std::fill(to + j * stride + rows, to + (j + 1) * stride, To(0));
  }
}

template <class T>
void add(const T* more, int64_t count, T* sums) {
  for (int64_t i = 0; i < count; ++i) sums[i] += more[i];
}

// Adds tokens [token][channel] to the sums of their channels.
template <class T>
void add_tokens(const T* tokens, int64_t count, int64_t channels, T* sums) {
  for (int64_t t = 0; t < count; ++t) add(tokens + t * channels, channels, sums);
}

// C (rows, columns) = A^T B for small matrices whose rows are padded to whole vectors, with
// A (depth, rows) and B (depth, columns). In fp64: where landmarks are close, the inverse has large
// entries of both signs, and of such products little more than roundings would be left.
inline void multiply(const double* a, int64_t lda, const double* b, int64_t ldb, int64_t rows,
                     int64_t depth, double* c) {
  MMLAPLACE_FOR_CPU(
      product<false, false>(a, lda, b, ldb, rows, ldb / lanes_of<double>(), depth, c, ldb));
}

// A call, as the passes need it. It points into what the caller has.
template <class T, class S>
struct Problem {
  View<const S> q, k, v;
  const T *landmarks, *inverse, *scale;  // contiguous
  Rotation<T> rotation;
  int64_t batch_heads, heads, queries, keys, m, d;
  int64_t stride, padded;  // m and d, rounded up to whole vectors
  int64_t query_parts, key_parts;
  T exponent, derivative, eps;
  bool whitened;

  Problem(const Sizes& sizes, View<const S> q, View<const S> k, View<const S> v, const T* landmarks,
          const T* inverse, const T* scale, Rotation<T> rotation, double exponent,
          double derivative, double whitening)
      : q(q),
        k(k),
        v(v),
        landmarks(landmarks),
        inverse(inverse),
        scale(scale),
        rotation(rotation),
        batch_heads(sizes.batch_heads()),
        heads(sizes.heads),
        queries(sizes.queries),
        keys(sizes.keys),
        m(sizes.marks),
        d(sizes.dims),
        stride(round_up(m, lanes_of<T>())),
        padded(round_up(d, lanes_of<T>())),
        query_parts(parts_of(batch_heads, queries)),
        key_parts(parts_of(batch_heads, keys)),
        exponent(static_cast<T>(exponent / std::log(2.0))),
        derivative(static_cast<T>(derivative)),
        eps(static_cast<T>(whitening)),
        whitened(whitening >= 0) {}

  const T* inverse_of(int64_t head) const { return inverse + head * m * m; }
  T scale_of(int64_t head) const { return scale[head]; }

  // Where tokens of a head begin in a result (B, tokens, heads, d), and how far apart they are.
  S* tokens_of(S* result, int64_t tokens, int64_t head) const {
    return result + (head / heads * tokens * heads + head % heads) * d;
  }
  int64_t token_stride() const { return heads * d; }

  // How many values of kernel tiles a thread keeps from pass to pass: those of the queries of a
  // head, up to some megabytes. Otherwise they are computed again.
  int64_t kept() const {
    const int64_t size = ceil_div(queries, kTile) * kTile * stride;
    const bool keeps = whitened && query_parts == 1 && key_parts == 1;
    return keeps && size * static_cast<int64_t>(sizeof(T)) <= 4 << 20 ? size : 0;
  }

  // Landmarks as [channel][landmark].
  void load_marks(int64_t head, T* marks) const {
    transposed_in(landmarks + head * m * d, d, m, d, marks, stride);
  }

  void load_rows(const View<const S>& tokens, bool turned, int64_t head, int64_t first,
                 int64_t count, T* scratch, T* rows) const {
    const Rotation<T> how = turned ? rotation : Rotation<T>();
    MMLAPLACE_FOR_CPU(load_rows(tokens.slice(head), first, count, d, how, scratch, rows));
  }
  void load_tokens(const View<const S>& tokens, int64_t head, int64_t first, int64_t count,
                   T* target) const {
    MMLAPLACE_FOR_CPU(load_tokens(tokens.slice(head).from(first), count, d, padded, target));
  }
  // `result` is where the tokens of the head begin.
  void store_rows(T* rows, bool turned, S* result, int64_t first, int64_t count, T* scratch) const {
    const Rotation<T> how = turned ? rotation : Rotation<T>();
    MMLAPLACE_FOR_CPU(store_rows(rows, first, count, d, how, scratch,
                                 result + first * token_stride(), token_stride()));
  }

  // tile (num_rows, tokens) (+)= small^T rows, for small (depth, num_rows), rows (depth, tokens).
  template <bool Add>
  void to_tile(const T* small, int64_t ld, const T* rows, int64_t count, int64_t num_rows,
               int64_t depth, T* tile) const {
    MMLAPLACE_FOR_CPU(product<false, Add>(small, ld, rows, kTile, num_rows,
                                          ceil_div(count, lanes_of<T>()), depth, tile, kTile));
  }
  // sums (m, d) += tile (m, tokens) tokens (tokens, d).
  void add_product(const T* tile, const T* tokens, int64_t count, T* sums) const {
    MMLAPLACE_FOR_CPU(product<true, true>(tile, 0, tokens, padded, m, padded / lanes_of<T>(), count,
                                          sums, padded));
  }
};

inline int64_t part_length(int64_t parts, int64_t tokens) {
  return round_up(ceil_div(tokens, parts), kTile);
}

// How many tokens are in a part.
inline int64_t part_size(int64_t part, int64_t parts, int64_t tokens) {
  const int64_t length = part_length(parts, tokens);
  return std::max<int64_t>(0, std::min(tokens, (part + 1) * length) - part * length);
}

// Calls f(first, count) for the tiles of a part.
template <class F>
void for_tiles(int64_t part, int64_t parts, int64_t tokens, const F& f) {
  const int64_t begin = part * part_length(parts, tokens);
  const int64_t end = begin + part_size(part, parts, tokens);
  for (int64_t first = begin; first < end; first += kTile) f(first, std::min(kTile, end - first));
}

// Calls f(head, part, scratch) for the parts of all heads, on all threads.
template <class Scratch, class P, class F>
void for_all(const P& problem, int64_t parts, const F& f) {
  host::parallel_for(problem.batch_heads * parts, 1, [&](int64_t begin, int64_t end) {
    const SubnormalsAsZeros zeros_here;
    Scratch scratch(problem);
    for (int64_t i = begin; i < end; ++i) f(i / parts, i % parts, scratch);
  });
}

}  // namespace nystrom
}  // namespace mmlaplace
