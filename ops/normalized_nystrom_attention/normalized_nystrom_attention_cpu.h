// What the passes of normalized_nystrom_attention on a CPU share. There is no ATen here, so that
// other hosts than PyTorch have these passes too.
#pragma once

#include "../nystrom_attention/nystrom_attention_cpu.h"
#include "normalized_nystrom_attention_rules.h"

namespace mmlaplace {
namespace normalized_nystrom {

using nystrom::Problem;

// A matrix (m, d) with a column more, for values and a one, in fp64 as of nystrom::multiply.
template <class T, class S>
int64_t extended(const Problem<T, S>& p) {
  return round_up(p.d + 1, nystrom::lanes_of<double>());
}

// [matrix, column] of a matrix (m, d) whose rows are `stride` apart.
template <class T, class S>
void extend(const Problem<T, S>& p, const T* matrix, int64_t stride, const T* column, double* to) {
  const int64_t width = extended(p);
  for (int64_t a = 0; a < p.m; ++a, to += width) {
    std::copy_n(matrix + a * stride, p.d, to);
    to[p.d] = column[a];
    std::fill(to + p.d + 1, to + width, 0.0);
  }
}

// The opposite: the columns of the matrix in rows of `p.padded`, and the last one.
template <class T, class S>
void take_apart(const Problem<T, S>& p, const double* from, T* matrix, T* column) {
  const int64_t width = extended(p);
  for (int64_t a = 0; a < p.m; ++a, from += width) {
    T* to = matrix + a * p.padded;
    for (int64_t c = 0; c < p.d; ++c) to[c] = static_cast<T>(from[c]);
    std::fill(to + p.d, to + p.padded, T(0));
    column[a] = static_cast<T>(from[p.d]);
  }
}

// What each query takes its part of: H = P B^T V, h = P B^T 1 and the smallest sum of weights.
template <class T>
struct Weighted {
  T *values, *sums, *smallest;  // (m, padded), (m) and a number
};

// H and h from B^T V, whose rows are `stride` apart, and B^T 1.
template <class T, class S>
void through_inverse(const Problem<T, S>& p, int64_t head, T floor, const T* mixed, int64_t stride,
                     const T* key_sum, const Weighted<T>& to) {
  const int64_t m = p.m, ld = p.stride, width = extended(p);
  Arrays<double> arrays({m * ld, m * width, m * width}, false);
  double *transposed = arrays.take(m * ld), *summed = arrays.take(m * width);
  double* result = arrays.take(m * width);
  nystrom::transposed_in(p.inverse_of(head), m, m, m, transposed, ld);
  extend(p, mixed, stride, key_sum, summed);
  nystrom::multiply(transposed, ld, summed, width, m, m, result);
  take_apart(p, result, to.values, to.sums);
  double size = 0;
  for (int64_t a = 0; a < m; ++a) size += std::abs(result[a * width + p.d]);
  // If all keys are too far from all landmarks, h is zero, and so is the result.
  *to.smallest = std::max(floor * static_cast<T>(size / m), static_cast<T>(kTiny));
}

// tile[a][t]: the kernel of queries and landmarks over its largest value of the query.
// inverse_sums[t]: 1 over the sum of its weights. Returns nothing for tokens beyond `count`.
template <class Metric, class T, class S>
void query_tile(const Problem<T, S>& p, const T* rows, const T* marks, int64_t count,
                const Weighted<T>& weighted, T* tile, T* inverse_sums) {
  MMLAPLACE_FOR_CPU(kernel_tile<Metric, T, false>(rows, marks, p.stride, count, p.m, p.d,
                                                  p.exponent, nullptr, tile));
  MMLAPLACE_FOR_CPU(powers_of_largest(count, p.m, tile));
  MMLAPLACE_FOR_CPU(weighted_sum_of_rows(tile, weighted.sums, count, p.m, inverse_sums));
  const T smallest = *weighted.smallest;
  for (int64_t t = 0; t < round_up(count, nystrom::lanes_of<T>()); ++t) {
    const T sum = inverse_sums[t];
    inverse_sums[t] = 1 / (sum < smallest ? smallest : sum);  // NaN stays
  }
}

}  // namespace normalized_nystrom
}  // namespace mmlaplace
