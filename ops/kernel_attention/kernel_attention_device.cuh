// GPU kernels of kernel_attention, see kernel_attention.h.
//
// This is device code alone, without ATen, so that tests can also run it on a CPU
// (tests/ops/native). Blocks, tiles and template parameters are those of
// nystrom_attention_device.cuh. A block has a part of the tokens of a head. For each tile of its
// part it goes through all tokens of the other side, as many at a time. So it alone writes the
// results of its tokens, and results are the same from run to run. The backward has a pass for the
// queries and one for the keys. Both compute the kernel of a tile again.
//
// Names such as `dq` are gradients.
#pragma once

#include "../nystrom_attention/nystrom_attention_device.cuh"

namespace mmlaplace {
namespace exact {
namespace device {

using namespace nystrom::device;

// The rows that a block needs of memory for its tiles.
template <int Tokens>
struct Rows {
  MMLAPLACE_HOST_DEVICE static int64_t forward(int64_t d) {
    return 3 * padded_channels(d) + Tokens + 3;
  }
  MMLAPLACE_HOST_DEVICE static int64_t query_gradients(int64_t d) {
    return 5 * padded_channels(d) + Tokens + 2;
  }
  MMLAPLACE_HOST_DEVICE static int64_t key_gradients(int64_t d) {
    return 6 * padded_channels(d) + Tokens + 2;
  }
};

// The tokens of the other side, which each block reads: keys and values, or queries and gradients.
template <class S>
struct Others {
  Source<S> tokens, values;
  int64_t count;
};

// Calls f(range) for the tiles of the other side.
template <int Tokens, class S, class F>
MMLAPLACE_INLINE void for_others(const Others<S>& others, const F& f) {
#pragma unroll 1
  for (int64_t first = 0; first < others.count; first += Tokens) {
    const int64_t left = others.count - first;
    f(Range{first, 1, static_cast<int>(left < Tokens ? left : Tokens)});
  }
}

// exponent * distance of the tokens from t on and of the others from a on.
template <class Metric, int Tokens, class T>
MMLAPLACE_INLINE void exponents(const T* others, const T* tokens, int d, T exponent,
                                T (&sums)[kMarks][4]) {
  fold<Tokens>(others, kPitch<Tokens>, tokens, static_cast<const T*>(nullptr), d, sums,
               [](T sum, T other, T value) { return accumulate(Metric{}, sum, value - other); });
#pragma unroll
  for (int r = 0; r < kMarks; ++r) {
#pragma unroll
    for (int u = 0; u < 4; ++u) sums[r][u] *= exponent;
  }
}

// sums[v][u] = f(sums[v][u], tile[a][u], rows[v][a], v, u) over all others a. `tile` begins at the
// token and `rows` at the channel that the sums are of.
template <int Tokens, int Rows, class T, class F>
MMLAPLACE_INLINE void fold_others(const T* tile, const T* rows, T (&sums)[Rows][4], const F& f) {
#pragma unroll 1
  for (int a = 0; a < Tokens; a += 4) {
    Quad<T> others[Rows];
#pragma unroll
    for (int v = 0; v < Rows; ++v) others[v] = read_quad(rows + v * kPitch<Tokens> + a);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const Quad<T> values = read_quad(tile + (a + e) * kPitch<Tokens>);
#pragma unroll
      for (int v = 0; v < Rows; ++v) {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          sums[v][u] = f(sums[v][u], values.values[u], others[v].values[e], v, u);
        }
      }
    }
  }
}

// result[c][t] = factors[t] result[c][t] + sum_a tile[a][t] rows[c][a], without factors as of 1.
template <int Tokens, class T>
MMLAPLACE_INLINE void add_others(const T* tile, const T* rows, int channels, const T* factors,
                                 T* result) {
  for_blocks<kChannels, Tokens>(channels, [&](int c, int t) {
    T sums[kChannels][4];
#pragma unroll
    for (int v = 0; v < kChannels; ++v) {
      const Quad<T> before = read_quad(result + (c + v) * kPitch<Tokens> + t);
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        sums[v][u] = factors ? before.values[u] * factors[t + u] : before.values[u];
      }
    }
    fold_others<Tokens>(tile + t, rows + c * kPitch<Tokens>, sums,
                        [](T sum, T weight, T value, int, int) { return sum + weight * value; });
    write_block<Tokens>(sums, result + c * kPitch<Tokens> + t);
  });
}

// result[c][t] += sum_a weights[a][t] slope(tokens[c][t] - others[c][a])
template <class Metric, int Tokens, class T>
MMLAPLACE_INLINE void add_gradients(const T* weights, const T* tokens, const T* others,
                                    int channels, T* result) {
  constexpr int kColumns = kGradients<T>;
  for_blocks<kColumns, Tokens>(channels, [&](int c, int t) {
    Quad<T> values[kColumns];
    T sums[kColumns][4];
#pragma unroll
    for (int v = 0; v < kColumns; ++v) {
      values[v] = read_quad(tokens + (c + v) * kPitch<Tokens> + t);
      const Quad<T> before = read_quad(result + (c + v) * kPitch<Tokens> + t);
#pragma unroll
      for (int u = 0; u < 4; ++u) sums[v][u] = before.values[u];
    }
    fold_others<Tokens>(weights + t, others + c * kPitch<Tokens>, sums,
                        [&](T sum, T weight, T other, int v, int u) {
                          return sum + slope(Metric{}, weight, values[v].values[u] - other);
                        });
    write_block<Tokens>(sums, result + c * kPitch<Tokens> + t);
  });
}

template <int Tokens, class T>
MMLAPLACE_INLINE void clear(int rows, T* tile) {
  for (int i = threadIdx.x; i < rows * kPitch<Tokens>; i += kThreads) tile[i] = 0;
}

// Of the rows from `first` on, `count` numbers, and zeros up to a tile.
template <int Tokens, class T>
MMLAPLACE_INLINE void load_numbers(const T* from, int count, T* to) {
  for (int t = threadIdx.x; t < Tokens; t += kThreads) to[t] = t < count ? from[t] : T(0);
}

// For queries: the result, the same in T, and the logarithms to base 2 of the sums of their
// kernels.
template <class Metric, int Tokens, class S, class T>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(4))
    forward_kernel(Pass<S, T> pass, Others<S> keys, S* out, T* means, T* log_sums) {
  Block<Tokens, S, T> block(pass, Rows<Tokens>::forward(pass.d), pass.parts);
  const int channels = pass.channels(), d = pass.d;
  T *tokens = block.take(channels), *others = block.take(channels), *outs = block.take(channels);
  T *tile = block.take(Tokens), *largest = block.take(1), *sums = block.take(1);
  T* factors = block.take(1);
  block.for_tiles([&](const Range& range) {
    clear<Tokens>(channels, outs);
    for (int t = threadIdx.x; t < Tokens; t += kThreads) sums[t] = 0, largest[t] = -T(INFINITY);
    load_turned<Tokens>(block.slice(pass.tokens), pass.tokens.quads, range, d, pass.rotary, tokens);
    for_others<Tokens>(keys, [&](const Range& near) {
      load_turned<Tokens>(block.slice(keys.tokens), keys.tokens.quads, near, d, pass.rotary,
                          others);
      for_blocks<kMarks, Tokens>(Tokens, [&](int a, int t) {
        T values[kMarks][4] = {};
        exponents<Metric, Tokens>(others + a, tokens + t, d, pass.exponent, values);
        write_block<Tokens>(values, tile + a * kPitch<Tokens> + t);
      });
      __syncthreads();
      block.load(keys.values, near, others);
      for (int t = threadIdx.x; t < Tokens; t += kThreads) {
        T most = largest[t];
        for (int a = 0; a < near.count; ++a) {
          const T value = tile[a * kPitch<Tokens> + t];
          most = value > most ? value : most;
        }
        factors[t] = exp2(largest[t] - most);
        largest[t] = most;
      }
      __syncthreads();
      for (int i = threadIdx.x; i < Tokens * Tokens; i += kThreads) {
        const int a = i / Tokens, t = i % Tokens;
        T* place = tile + a * kPitch<Tokens> + t;
        *place = a < near.count ? exp2(*place - largest[t]) : T(0);
      }
      __syncthreads();
      for (int t = threadIdx.x; t < Tokens; t += kThreads) {
        T sum = 0;
        for (int a = 0; a < near.count; ++a) sum += tile[a * kPitch<Tokens> + t];
        sums[t] = sums[t] * factors[t] + sum;
      }
      add_others<Tokens>(tile, others, channels, factors, outs);
      __syncthreads();
    });
    T* log_sums_of = log_sums + block.head * pass.count + range.first;
    for (int t = threadIdx.x; t < range.count; t += kThreads) {
      log_sums_of[t] = largest[t] + log2(sums[t]);
    }
    T* means_of = means + (block.token_of(out, range.first) - out);
    store_tokens<Tokens>(outs, means_of, block.token_stride(), range.count, d,
                         [&](int, int t, T value) { return value / sums[t]; });
    store_tokens<Tokens>(outs, block.token_of(out, range.first), block.token_stride(), range.count,
                         d, [&](int, int t, T value) { return value / sums[t]; });
    __syncthreads();
  });
}

// For queries, with their gradients as `pass.values`: dots_i = <g_i, out_i>, and
// dq_i = sum_j w_ij (<g_i, v_j> - dots_i) dlog k(q_i, k_j)/dq_i.
template <class Metric, int Tokens, class S, class T>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(3))
    query_gradients_kernel(Pass<S, T> pass, Others<S> keys, Source<T> means, const T* log_sums,
                           T* dots, S* dq) {
  Block<Tokens, S, T> block(pass, Rows<Tokens>::query_gradients(pass.d), pass.parts);
  const int channels = pass.channels(), d = pass.d;
  T *tokens = block.take(channels), *grads = block.take(channels), *others = block.take(channels);
  T *values = block.take(channels), *result = block.take(channels), *tile = block.take(Tokens);
  T *logs = block.take(1), *dot = block.take(1);
  block.for_tiles([&](const Range& range) {
    const int64_t row = block.head * pass.count + range.first;
    block.load(pass.values, range, grads);
    const Slice<const T> means_of(means.data, means.strides, pass.heads, block.head);
    load_tokens<Tokens>(means_of, means.quads, range, d, result);
    load_numbers<Tokens>(log_sums + row, range.count, logs);
    load_turned<Tokens>(block.slice(pass.tokens), pass.tokens.quads, range, d, pass.rotary, tokens);
    for (int t = threadIdx.x; t < Tokens; t += kThreads) {
      T sum = 0;
      for (int c = 0; c < d; ++c) {
        sum += grads[c * kPitch<Tokens> + t] * result[c * kPitch<Tokens> + t];
      }
      dot[t] = sum;
      if (t < range.count) dots[row + t] = sum;
    }
    __syncthreads();
    clear<Tokens>(channels, result);
    for_others<Tokens>(keys, [&](const Range& near) {
      block.load(keys.values, near, values);
      load_turned<Tokens>(block.slice(keys.tokens), keys.tokens.quads, near, d, pass.rotary,
                          others);
      for_blocks<kMarks, Tokens>(Tokens, [&](int a, int t) {
        T weights[kMarks][4] = {}, changes[kMarks][4] = {};
        exponents<Metric, Tokens>(others + a, tokens + t, d, pass.exponent, weights);
        add_product<Tokens>(values + a, kPitch<Tokens>, grads + t, d, changes);
#pragma unroll
        for (int r = 0; r < kMarks; ++r) {
#pragma unroll
          for (int u = 0; u < 4; ++u) {
            const T weight = a + r < near.count ? exp2(weights[r][u] - logs[t + u]) : T(0);
            weights[r][u] = pass.derivative * weight * (changes[r][u] - dot[t + u]);
          }
        }
        write_block<Tokens>(weights, tile + a * kPitch<Tokens> + t);
      });
      __syncthreads();
      add_gradients<Metric, Tokens>(tile, tokens, others, channels, result);
      __syncthreads();
    });
    store_turned<Tokens>(result, block.token_of(dq, range.first), block.token_stride(), range, d,
                         pass.rotary);
  });
}

// For keys, with the values as `pass.values`, over queries and their gradients:
// dv_j = sum_i w_ij g_i, and dk_j as dq_i above.
template <class Metric, int Tokens, class S, class T>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(3))
    key_gradients_kernel(Pass<S, T> pass, Others<S> queries, const T* log_sums, const T* dots,
                         S* dk, S* dv) {
  Block<Tokens, S, T> block(pass, Rows<Tokens>::key_gradients(pass.d), pass.parts);
  const int channels = pass.channels(), d = pass.d;
  T *tokens = block.take(channels), *values = block.take(channels), *others = block.take(channels);
  T *grads = block.take(channels), *dtokens = block.take(channels);
  T *dvalues = block.take(channels), *tile = block.take(Tokens);
  T *logs = block.take(1), *dot = block.take(1);
  block.for_tiles([&](const Range& range) {
    clear<Tokens>(channels, dtokens);
    clear<Tokens>(channels, dvalues);
    block.load(pass.values, range, values);
    load_turned<Tokens>(block.slice(pass.tokens), pass.tokens.quads, range, d, pass.rotary, tokens);
    for_others<Tokens>(queries, [&](const Range& near) {
      const int64_t row = block.head * queries.count + near.first;
      load_numbers<Tokens>(log_sums + row, near.count, logs);
      load_numbers<Tokens>(dots + row, near.count, dot);
      block.load(queries.values, near, grads);
      load_turned<Tokens>(block.slice(queries.tokens), queries.tokens.quads, near, d, pass.rotary,
                          others);
      for_blocks<kMarks, Tokens>(Tokens, [&](int a, int t) {
        T weights[kMarks][4] = {};
        exponents<Metric, Tokens>(others + a, tokens + t, d, pass.exponent, weights);
#pragma unroll
        for (int r = 0; r < kMarks; ++r) {
#pragma unroll
          for (int u = 0; u < 4; ++u) {
            weights[r][u] = a + r < near.count ? exp2(weights[r][u] - logs[a + r]) : T(0);
          }
        }
        write_block<Tokens>(weights, tile + a * kPitch<Tokens> + t);
      });
      __syncthreads();
      add_others<Tokens>(tile, grads, channels, static_cast<const T*>(nullptr), dvalues);
      __syncthreads();
      for_blocks<kMarks, Tokens>(Tokens, [&](int a, int t) {
        T changes[kMarks][4] = {};
        add_product<Tokens>(grads + a, kPitch<Tokens>, values + t, d, changes);
#pragma unroll
        for (int r = 0; r < kMarks; ++r) {
#pragma unroll
          for (int u = 0; u < 4; ++u) changes[r][u] -= dot[a + r];
        }
        T* place = tile + a * kPitch<Tokens> + t;
        weigh<Tokens>(changes, place, pass.derivative, place);
      });
      __syncthreads();
      add_gradients<Metric, Tokens>(tile, tokens, others, channels, dtokens);
      __syncthreads();
    });
    store_tokens<Tokens>(dvalues, block.token_of(dv, range.first), block.token_stride(),
                         range.count, d, [](int, int, T value) { return value; });
    store_turned<Tokens>(dtokens, block.token_of(dk, range.first), block.token_stride(), range, d,
                         pass.rotary);
  });
}

}  // namespace device
}  // namespace exact
}  // namespace mmlaplace
