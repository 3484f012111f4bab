// GPU kernels of normalized_nystrom_attention: its passes over tokens, see docs/maths.md.
//
// This is device code alone, without ATen, so that tests can also run it on a CPU
// (tests/ops/native). Blocks, tiles and template parameters are those of
// nystrom_attention_device.cuh. Values have a channel more than keys, which is one: so the sums of
// the weights are a column more of every matrix. `extended` is the padded count of these channels.
//
// Names such as `dsummed` are gradients.
#pragma once

#include "../nystrom_attention/nystrom_attention_device.cuh"
#include "normalized_nystrom_attention_rules.h"

namespace mmlaplace {
namespace normalized_nystrom {
namespace device {

using namespace nystrom::device;

MMLAPLACE_HOST_DEVICE inline int64_t extended_channels(int64_t d) { return padded_channels(d + 1); }

// The rows that a block needs of memory for its tiles.
struct Rows {
  MMLAPLACE_HOST_DEVICE static int64_t forward(int64_t m, int64_t d) {
    return extended_channels(d) + padded_marks(m) + 1;
  }
  MMLAPLACE_HOST_DEVICE static int64_t query_gradients(int64_t m, int64_t d) {
    return padded_channels(d) + extended_channels(d) + 2 * padded_marks(m) +
           2 * padded_marks(m) / kMarks + 2;
  }
  MMLAPLACE_HOST_DEVICE static int64_t key_gradients(int64_t m, int64_t d) {
    return 2 * padded_channels(d) + extended_channels(d) + 2 * padded_marks(m);
  }
  // Of both.
  MMLAPLACE_HOST_DEVICE static int64_t backward(int64_t m, int64_t d) {
    const int64_t by_queries = query_gradients(m, d), by_keys = key_gradients(m, d);
    return by_queries > by_keys ? by_queries : by_keys;
  }
};

// The channels of a tile from `first` on: `value` for the tokens in one, and zeros in the others.
template <int Tokens, class T, class F>
MMLAPLACE_INLINE void fill_last_channels(int first, int channels, const F& value, T* tile) {
  for (int i = threadIdx.x; i < (channels - first) * Tokens; i += kThreads) {
    const int c = first + i / Tokens, t = i % Tokens;
    tile[c * kPitch<Tokens> + t] = c == first ? value(t) : T(0);
  }
}

// Values and a channel of ones. Waits.
template <int Tokens, class S, class T>
MMLAPLACE_INLINE void load_extended(const Block<Tokens, S, T>& block, const Range& range,
                                    T* values) {
  const int d = block.pass.d;
  block.load(block.pass.values, range, values);
  __syncthreads();
  fill_last_channels<Tokens>(
      d, static_cast<int>(extended_channels(d)),
      [&](int t) { return t < range.count ? T(1) : T(0); }, values);
  __syncthreads();
}

// The kernel of a range of queries over its largest value of each. Waits.
template <class Metric, int Tokens, class S, class T>
MMLAPLACE_INLINE void query_tile(const Block<Tokens, S, T>& block, const Range& range, T* tokens,
                                 T* largest, T* tile) {
  const Pass<S, T>& pass = block.pass;
  const T *marks = block.marks(), exponent = pass.exponent;
  const int m = pass.m, padded = pass.marks_n();
  load_turned<Tokens>(block.slice(pass.tokens), pass.tokens.quads, range, pass.d, pass.rotary,
                      tokens);
  for_blocks<kMarks, Tokens>(padded, [&](int a, int t) {
    T sums[kMarks][4] = {};
    fold<Tokens>(marks + a, padded, tokens + t, static_cast<const T*>(nullptr), pass.d, sums,
                 [](T sum, T mark, T value) { return accumulate(Metric{}, sum, value - mark); });
#pragma unroll
    for (int r = 0; r < kMarks; ++r) {
#pragma unroll
      for (int u = 0; u < 4; ++u) sums[r][u] *= exponent;
    }
    write_block<Tokens>(sums, tile + a * kPitch<Tokens> + t);
  });
  __syncthreads();
  for (int t = threadIdx.x; t < Tokens; t += kThreads) {
    T most = tile[t];
    for (int a = 1; a < m; ++a) {
      const T value = tile[a * kPitch<Tokens> + t];
      most = value > most ? value : most;
    }
    largest[t] = most;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < padded * Tokens; i += kThreads) {
    const int a = i / Tokens, t = i % Tokens;
    T* place = tile + a * kPitch<Tokens> + t;
    *place = a < m && t < range.count ? exp2(*place - largest[t]) : T(0);
  }
  __syncthreads();
}

// The smallest sum of weights of a head, from `column` of its result (m, extended).
template <class T>
MMLAPLACE_INLINE T smallest_sum(const T* result, int m, int extended, int column, T floor) {
  T size = 0;
  for (int a = 0; a < m; ++a) size += fabs(result[a * extended + column]);
  const T smallest = floor * (size / m), tiny = static_cast<T>(kTiny);
  return smallest < tiny ? tiny : smallest;  // NaN stays
}

// What the last block of a head makes of the sums over its keys: those of b_j v_j^T as `mixed`
// (m, d), those of b_j as `key_sum` (m), and P times both as `result` (padded m, extended).
template <class T>
struct Joiner {
  Matrices<T> inverse;
  T *mixed, *key_sum, *result;
};

// For each part, sums (padded m, extended) of b_j [v_j, 1]^T.
template <class Metric, int Tokens, class S, class T>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(4))
    key_sums_kernel(Pass<S, T> pass, T* sums, Joiner<T> joiner) {
  Block<Tokens, S, T> block(pass, Rows::forward(pass.m, pass.d), pass.parts);
  const int m = pass.marks_n(), extended = static_cast<int>(extended_channels(pass.d));
  T *values = block.take(extended), *tile = block.take(m);
  T* own = block.cleared(sums, m, extended);
  block.for_tiles([&](const Range& range) {
    block.template kernel<Metric, FmaUnits>(range, nullptr, values, tile);
    __syncthreads();
    load_extended(block, range, values);
    add_outer<Tokens>(tile, m, values, extended, static_cast<const T*>(nullptr), own);
    __syncthreads();
  });
  T* total = block.add_parts(sums, m, extended);
  if (total == nullptr) return;
  const int64_t head = block.head;
  const int marks = pass.m, d = pass.d;
  for (int i = threadIdx.x; i < marks * d; i += kThreads) {
    joiner.mixed[head * marks * d + i] = total[i / d * extended + i % d];
  }
  for (int a = threadIdx.x; a < marks; a += kThreads) {
    joiner.key_sum[head * marks + a] = total[a * extended + d];
  }
  const Matrices<T>& inverse = joiner.inverse;
  const T* inverse_of = inverse.values + head * inverse.batch;
  T* result = joiner.result + head * m * extended;
  for_product<T>(
      marks, extended, marks,
      [&](int k, int a) { return inverse_of[a * inverse.row + k * inverse.column]; },
      [&](int k, int c) { return total[k * extended + c]; },
      [&](int a, int c, T sum) { result[a * extended + c] = sum; });
}

// out_i = U_i / u_i, with [U_i, u_i] = sum_a c_ia result_a.
template <class Metric, int Tokens, class S, class T>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(4))
    normalized_output_kernel(Pass<S, T> pass, const T* result, T floor, S* out) {
  Block<Tokens, S, T> block(pass, Rows::forward(pass.m, pass.d), pass.parts);
  const int m = pass.marks_n(), d = pass.d, extended = static_cast<int>(extended_channels(d));
  T *tokens = block.take(extended), *tile = block.take(m), *largest = block.take(1);
  const T* result_of = block.of_head(result, static_cast<int64_t>(m) * extended);
  const T smallest = smallest_sum(result_of, pass.m, extended, d, floor);
  block.for_tiles([&](const Range& range) {
    query_tile<Metric>(block, range, tokens, largest, tile);
    FmaUnits::product<Tokens>(result_of, extended, tile, pass.m, static_cast<const T*>(nullptr),
                              tokens);
    __syncthreads();
    const T* sums = tokens + d * kPitch<Tokens>;
    store_tokens<Tokens>(
        tokens, block.token_of(out, range.first), block.token_stride(), range.count, d,
        [&](int, int t, T value) { return value / (sums[t] < smallest ? smallest : sums[t]); });
    __syncthreads();
  });
}

// The matrices of a head that a backward pass reads, (padded m, extended) and transposed: [H, h]
// over queries, and over keys the gradient of sum_j b_j [v_j, 1]^T.
template <class T>
struct ExtendedMatrices {
  const T *plain, *transposed;
};

// With e_i = g_i / u_i and du_i = -<g_i, U_i> / u_i^2, or 0 at the smallest sum:
// dc_i = H e_i + h du_i, which goes on to q_i and the landmarks. For each part, sums (m, d) of the
// gradient of the landmarks, and (m, extended) of c_i [e_i, du_i]^T.
template <class Metric, int Tokens, class S, class T>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(3))
    normalized_query_gradients_kernel(Pass<S, T> pass, ExtendedMatrices<T> matrices, T floor, S* dq,
                                      T* sums) {
  Block<Tokens, S, T> block(pass, Rows::query_gradients(pass.m, pass.d), pass.parts);
  const int m = pass.marks_n(), channels = pass.channels(), d = pass.d;
  const int extended = static_cast<int>(extended_channels(d)), groups = m / kMarks;
  T *tokens = block.take(channels), *grads = block.take(extended);
  T *tile = block.take(m), *dtile = block.take(m);
  T *dots = block.take(groups), *weights = block.take(groups);
  T *factors = block.take(1), *changes = block.take(1);
  const int64_t size = static_cast<int64_t>(m) * extended;
  const T *result = block.of_head(matrices.plain, size),
          *transposed = block.of_head(matrices.transposed, size);
  const T smallest = smallest_sum(result, pass.m, extended, d, floor);
  const T* column = transposed + static_cast<int64_t>(d) * m;  // h
  T* dmarks = sums + blockIdx.x * (static_cast<int64_t>(m) * channels + size);
  T* dresult = dmarks + static_cast<int64_t>(m) * channels;
  block.for_tiles([&](const Range& range) {
    query_tile<Metric>(block, range, tokens, factors, tile);
    block.load(pass.values, range, grads);
    __syncthreads();
    for_blocks<kMarks, Tokens>(m, [&](int a, int t) {  // H g_i, <c_i, H g_i> and <c_i, h>
      T products[kMarks][4] = {};
      add_product<Tokens>(transposed + a, m, grads + t, d, products);
      Quad<T> dot = {}, weight = {};
#pragma unroll
      for (int r = 0; r < kMarks; ++r) {
        const Quad<T> values = read_quad(tile + (a + r) * kPitch<Tokens> + t);
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          dot.values[u] += products[r][u] * values.values[u];
          weight.values[u] += column[a + r] * values.values[u];
        }
      }
      write_quad(dots + a / kMarks * kPitch<Tokens> + t, dot);
      write_quad(weights + a / kMarks * kPitch<Tokens> + t, weight);
      write_block<Tokens>(products, dtile + a * kPitch<Tokens> + t);
    });
    __syncthreads();
    for (int t = threadIdx.x; t < Tokens; t += kThreads) {
      const T sum = sum_of_column<Tokens>(weights, groups, t);
      const bool small = sum < smallest;
      const T factor = T(1) / (small ? smallest : sum);
      factors[t] = factor;
      changes[t] = small ? T(0) : -sum_of_column<Tokens>(dots, groups, t) * factor * factor;
    }
    __syncthreads();
    for_blocks<kMarks, Tokens>(m, [&](int a, int t) {  // dc_i
      const int at = a * kPitch<Tokens> + t;
      const Quad<T> factor = read_quad(factors + t), change = read_quad(changes + t);
      T products[kMarks][4];
#pragma unroll
      for (int r = 0; r < kMarks; ++r) {
        const Quad<T> values = read_quad(dtile + at + r * kPitch<Tokens>);
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          products[r][u] = values.values[u] * factor.values[u] + column[a + r] * change.values[u];
        }
      }
      weigh<Tokens>(products, tile + at, pass.derivative, dtile + at);
    });
    for (int i = threadIdx.x; i < d * Tokens; i += kThreads) {  // e_i
      const int t = i % Tokens;
      grads[i / Tokens * kPitch<Tokens> + t] *= factors[t];
    }
    fill_last_channels<Tokens>(d, extended, [&](int t) { return changes[t]; }, grads);
    __syncthreads();
    add_outer<Tokens>(tile, m, grads, extended, static_cast<const T*>(nullptr), dresult);
    __syncthreads();
    token_gradients<Metric, Tokens>(dtile, tokens, block.marks(), m, channels, grads);
    add_mark_gradients<Metric, Tokens>(dtile, tokens, block.marks(), m, channels, dmarks);
    __syncthreads();
    store_turned<Tokens>(grads, block.token_of(dq, range.first), block.token_stride(), range, d,
                         pass.rotary);
  });
}

// dv_j = dG^T b_j and db_j = dG v_j + dg, which goes on to k_j and the landmarks. For each part,
// sums (m, d) of the gradient of the landmarks.
template <class Metric, int Tokens, class S, class T>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(3))
    normalized_key_gradients_kernel(Pass<S, T> pass, ExtendedMatrices<T> matrices, S* dk, S* dv,
                                    T* sums) {
  Block<Tokens, S, T> block(pass, Rows::key_gradients(pass.m, pass.d), pass.parts);
  const int m = pass.marks_n(), channels = pass.channels(), d = pass.d;
  const int extended = static_cast<int>(extended_channels(d));
  T *tokens = block.take(channels), *values = block.take(extended), *others = block.take(channels);
  T *tile = block.take(m), *dtile = block.take(m);
  const int64_t size = static_cast<int64_t>(m) * extended;
  const T *dsummed = block.of_head(matrices.plain, size),
          *transposed = block.of_head(matrices.transposed, size);
  T* dmarks = sums + blockIdx.x * static_cast<int64_t>(m) * channels;
  block.for_tiles([&](const Range& range) {
    load_extended(block, range, values);
    block.template kernel<Metric, FmaUnits>(range, nullptr, tokens, tile);
    __syncthreads();
    for_blocks<kChannels, Tokens>(channels, [&](int c, int t) {
      T product[kChannels][4] = {};
      add_product<Tokens>(dsummed + c, extended, tile + t, pass.m, product);
      write_block<Tokens>(product, others + c * kPitch<Tokens> + t);
    });
    for_blocks<kMarks, Tokens>(m, [&](int a, int t) {
      const int at = a * kPitch<Tokens> + t;
      T grads[kMarks][4] = {};
      add_product<Tokens>(transposed + a, m, values + t, d + 1, grads);
      weigh<Tokens>(grads, tile + at, pass.derivative, dtile + at);
    });
    __syncthreads();
    store_tokens<Tokens>(others, block.token_of(dv, range.first), block.token_stride(), range.count,
                         d, [](int, int, T value) { return value; });
    token_gradients<Metric, Tokens>(dtile, tokens, block.marks(), m, channels, values);
    add_mark_gradients<Metric, Tokens>(dtile, tokens, block.marks(), m, channels, dmarks);
    __syncthreads();
    store_turned<Tokens>(values, block.token_of(dk, range.first), block.token_stride(), range, d,
                         pass.rotary);
  });
}

}  // namespace device
}  // namespace normalized_nystrom
}  // namespace mmlaplace
