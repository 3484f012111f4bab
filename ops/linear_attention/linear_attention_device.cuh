// GPU kernels of linear_attention: its passes over tokens, see docs/developers/linear_attention.md.
//
// This is device code alone, without ATen, so that tests can also run it on a CPU
// (tests/ops/native). A block has a part of the tokens of a head, and goes through it in tiles. Its
// sums over the part have a place of their own in global memory. The next pass adds the parts in
// order, so results are the same from run to run, without atomics and without a pass between.
//
// The template parameters are <Tokens, S, T, Products>: the tokens of a tile, the type S of tokens
// in global memory, the type T of all else, and who multiplies tiles, FmaUnits or TensorCores.
// Tiles and matrices are in shared memory, or in global memory if they do not fit.
//
// F and D are the features f and channels d, padded as in token_tiles.cuh, with zeros.
#pragma once

#include "../common/cuda/tensor_cores.cuh"
#include "../common/cuda/token_tiles.cuh"
#include "linear_attention_rules.h"

namespace mmlaplace {
namespace linear {
namespace device {

using namespace token_tiles;

constexpr int kTokens = 64, kFewTokens = 16;

// The blocks that a multiprocessor must have room for, by which the compiler limits registers.
// Doubles need twice as many and are not what a GPU is for: no limit.
template <class T>
constexpr int blocks_per_processor(int blocks) {
  return sizeof(T) > 4 ? 1 : blocks;
}

// What a pass over the queries or keys gets.
template <class S, class T>
struct Pass {
  Source<S> tokens;       // queries or keys
  Source<S> tops;         // of the numerator; null if they are the same
  Source<S> values;       // values, or gradients of the outputs, if the pass needs them
  T* memory;              // for tiles and matrices; null if they are in shared memory
  int64_t heads, count;   // tokens of a head
  int64_t parts, length;  // of the tokens of a head
  Features features;
  Streams streams;
  T eps;

  MMLAPLACE_HOST_DEVICE int rows() const {
    return static_cast<int>(padded_channels(streams.features));
  }
  MMLAPLACE_HOST_DEVICE int columns() const {
    return static_cast<int>(padded_channels(streams.dims));
  }
};

// The memory of a block: rows of tiles, and values of matrices.
struct Memory {
  int64_t rows, values;

  MMLAPLACE_HOST_DEVICE static Memory key_sums(int64_t f, int64_t d, bool tops, int) {
    const int64_t F = padded_channels(f), D = padded_channels(d);
    return {(tops ? 2 : 1) * F + D, F * (D + 1)};
  }
  MMLAPLACE_HOST_DEVICE static Memory outputs(int64_t f, int64_t d, bool tops, int streams) {
    const int64_t F = padded_channels(f), D = padded_channels(d);
    return {(tops ? 2 : 1) * F + D + streams, F * (D + streams)};
  }
  MMLAPLACE_HOST_DEVICE static Memory query_gradients(int64_t f, int64_t d, bool tops,
                                                      int streams) {
    const int64_t F = padded_channels(f), D = padded_channels(d);
    return {(tops ? 3 : 2) * F + streams * D + 2 * streams, 2 * F * (D + streams)};
  }
  MMLAPLACE_HOST_DEVICE static Memory key_gradients(int64_t f, int64_t d, bool tops, int) {
    const int64_t F = padded_channels(f), D = padded_channels(d);
    return {(tops ? 3 : 2) * F + D, F * (D + 1)};
  }
};

// A block's work on one head. It takes memory piece by piece.
template <int Tokens, class S, class T>
struct Block {
  const Pass<S, T>& pass;
  const int F, D;
  int64_t head, part;
  T* next;

  __device__ Block(const Pass<S, T>& pass, const Memory& size)
      : pass(pass),
        F(pass.rows()),
        D(pass.columns()),
        head(blockIdx.x / pass.parts),
        part(blockIdx.x % pass.parts) {
    MMLAPLACE_SHARED_MEMORY(memory);
    next = reinterpret_cast<T*>(memory);
    if (Tokens == kFewTokens && pass.memory) {
      next = pass.memory + blockIdx.x * (size.rows * kPitch<Tokens> + size.values);
    }
  }

  __device__ T* take(int64_t values) {
    T* array = next;
    next += values;
    return array;
  }
  __device__ T* take_rows(int64_t rows) { return take(rows * kPitch<Tokens>); }
  __device__ T* take_zeros(int64_t values) {
    T* array = take(values);
    for (int64_t i = threadIdx.x; i < values; i += kThreads) array[i] = 0;
    return array;
  }

  __device__ void load(const Source<S>& source, const Range& range, int dims, T* tile) const {
    const Slice<const S> slice(source.data, source.strides, pass.heads, head);
    load_tokens<Tokens>(slice, source.quads, range, dims, tile);
  }
  // The features of a range of tokens and, in a tile of their own, those of the numerator.
  __device__ void load_features(const Range& range, T* tile, T* tops) const {
    const int dims = pass.streams.features;
    load(pass.tokens, range, dims, tile);
    if (tops != tile) load(pass.tops, range, dims, tops);
    if (pass.features == Features::none) return;
    // Each thread has loaded these squares itself. Beyond the last token and channel stay zeros.
    for_squares<Tokens>(dims, [&](int t, int c) {
      for (int v = 0; v < 4 && c + v < dims; ++v) {
        T* row = tile + (c + v) * kPitch<Tokens> + t;
        for (int u = 0; u < 4 && t + u < range.count; ++u) {
          row[u] = feature(pass.features, row[u]);
        }
      }
    });
  }

  // Calls f(range) for the tiles of the block's part.
  template <class G>
  __device__ void for_tiles(const G& f) const {
    const int64_t begin = part * pass.length, rest = pass.count - begin;
    const int64_t end = begin + (rest < pass.length ? rest : pass.length);
#pragma unroll 1
    for (int64_t first = begin; first < end; first += Tokens) {
      f(Range{first, 1, static_cast<int>(end - first < Tokens ? end - first : Tokens)});
    }
  }

  // Writes a tile to a result (B, N, heads, dims), with the values f(c, t, value).
  template <class G>
  __device__ void store(const T* tile, const Range& range, int dims, S* result, const G& f) const {
    const int64_t batch = head / pass.heads;
    S* to = result + ((batch * pass.count + range.first) * pass.heads + head % pass.heads) * dims;
    store_tokens<Tokens>(tile, to, pass.heads * dims, range.count, dims, f);
  }

  // Adds the values of the parts at places of their sums. There are several, as each load waits
  // long for memory that other blocks have written; none at a place below 0.
  template <int count>
  __device__ void add_parts(const T* from, int64_t parts, const int (&at)[count],
                            T (&totals)[count]) const {
    const int64_t size = static_cast<int64_t>(pass.streams.features) * (pass.streams.dims + 1);
#pragma unroll 4
    for (int64_t i = 0; i < parts; ++i, from += size) {
#pragma unroll
      for (int e = 0; e < count; ++e) totals[e] += at[e] < 0 ? T(0) : from[at[e]];
    }
  }
  // share times the sums of a head: S as matrix (F, D) and m as `means` (streams, F), where
  // features are those of queries that meet them. With one stream they are those of the keys.
  // `kept`, if not null, gets them in the order of the keys, from the first block of a head.
  __device__ void load_sums(const T* sums, int64_t parts, T share, const Streams& streams,
                            T* matrix, T* means, T* kept) const {
    const int f = streams.features, d = streams.dims;
    const bool keep = kept && part == 0;
    if (keep) kept += head * f * (d + 1);
    const T* from = sums + head * parts * f * (d + 1);
    for (int i = threadIdx.x; i < F * D; i += 4 * kThreads) {
      int at[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int c = (i + e * kThreads) % D,
                  r = streams.met((i + e * kThreads) / D, streams.of(c));
        at[e] = r < f && c < d ? r * (d + 1) + c : -1;
      }
      T totals[4] = {};
      add_parts(from, parts, at, totals);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (i + e * kThreads >= F * D) break;
        matrix[i + e * kThreads] = totals[e] * share;
        if (keep && at[e] >= 0) kept[at[e]] = totals[e] * share;
      }
    }
    for (int i = threadIdx.x; i < streams.count * F; i += kThreads) {
      const int stream = i / F, r = streams.met(i % F, stream);
      const int at[1] = {r < f ? r * (d + 1) + d : -1};
      T totals[1] = {};
      add_parts(from, parts, at, totals);
      means[i] = totals[0] * share;
      if (keep && stream == 0 && r < f) kept[at[0]] = means[i];
    }
  }
  // The place of this block's sums (f, d + 1).
  __device__ T* own(T* sums) const {
    return sums +
           blockIdx.x * static_cast<int64_t>(pass.streams.features) * (pass.streams.dims + 1);
  }

  // normalizers[stream][t] = q_t m + eps
  __device__ void normalize(const T* queries, const T* means, T* normalizers) const {
    for (int i = threadIdx.x; i < pass.streams.count * Tokens; i += kThreads) {
      const int stream = i / Tokens, t = i % Tokens;
      T sum = 0;
#pragma unroll 4
      for (int r = 0; r < F; ++r) sum += queries[r * kPitch<Tokens> + t] * means[stream * F + r];
      normalizers[stream * kPitch<Tokens> + t] = sum + pass.eps;
    }
  }
};

// The products of tiles, by each thread.
struct FmaUnits {
  template <int Tokens, class T>
  MMLAPLACE_INLINE void add_outer(const T* a, int rows, const T* b, int columns, T* sums) {
    token_tiles::add_outer<Tokens>(a, rows, b, columns, static_cast<const T*>(nullptr), sums);
  }
  // result[c][t] = sum_k matrix[k][c] tile[k][t]
  template <int Tokens, class T>
  MMLAPLACE_INLINE void product(const T* matrix, int columns, const T* tile, int depth, T* result) {
    for_blocks<kChannels, Tokens>(columns, [&](int c, int t) {
      T sums[kChannels][4] = {};
      add_product<Tokens>(matrix + c, columns, tile + t, depth, sums);
      write_block<Tokens>(sums, result + c * kPitch<Tokens> + t);
    });
  }
  // result[r][t] = sum_k matrix[r][k] tile[k][t]
  template <int Tokens, class T>
  MMLAPLACE_INLINE void transposed_product(const T* matrix, int rows, const T* tile, int depth,
                                           T* result) {
    for_blocks<4, Tokens>(rows, [&](int r, int t) {
      T sums[4][4] = {};
#pragma unroll 1
      for (int k = 0; k < depth; k += 4) {
        Quad<T> factors[4], values[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          factors[e] = read_quad(matrix + (r + e) * depth + k);
          values[e] = read_quad(tile + (k + e) * kPitch<Tokens> + t);
        }
#pragma unroll
        for (int v = 0; v < 4; ++v) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
#pragma unroll
            for (int u = 0; u < 4; ++u) sums[v][u] += factors[v].values[e] * values[e].values[u];
          }
        }
      }
      write_block<Tokens>(sums, result + r * kPitch<Tokens> + t);
    });
  }
};

// The same by warps, for floats.
template <class Operand>
struct TensorCores {
  template <int Tokens>
  MMLAPLACE_INLINE void add_outer(const float* a, int rows, const float* b, int columns,
                                  float* sums) {
    token_tiles::TensorCores<Operand>::template add_outer<Tokens>(a, rows, b, columns, nullptr,
                                                                  sums);
  }
  template <int Tokens>
  MMLAPLACE_INLINE void product(const float* matrix, int columns, const float* tile, int depth,
                                float* result) {
    token_tiles::TensorCores<Operand>::template product<Tokens>(matrix, columns, tile, depth,
                                                                nullptr, result);
  }
  template <int Tokens>
  MMLAPLACE_INLINE void transposed_product(const float* matrix, int rows, const float* tile,
                                           int depth, float* result) {
    for_warps(rows, Tokens, [&](int row, int column) {
      BlockSums block = {};
      multiply<Operand, false>(
          depth,
          [&](int r, int k) { return row + r < rows ? matrix[(row + r) * depth + k] : 0.0f; },
          [&](int t, int k) { return tile[k * kPitch<Tokens> + column + t]; }, block);
      for_sums(block, [&](int r, int t, float sum) {
        if (row + r < rows) result[(row + r) * kPitch<Tokens> + column + t] = sum;
      });
    });
  }
};

// For each part, the sums over its keys of k~_j^T v_j and of k_j.
template <int Tokens, class S, class T, class Products = FmaUnits>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(4))
    key_sums_kernel(Pass<S, T> pass, Memory size, T* sums) {
  Block<Tokens, S, T> block(pass, size);
  const int F = block.F, D = block.D, f = pass.streams.features, d = pass.streams.dims;
  T *keys = block.take_rows(F), *values = block.take_rows(D);
  T* tops = pass.tops.data ? block.take_rows(F) : keys;
  T *matrix = block.take_zeros(F * D), *mean = block.take_zeros(F);
  block.for_tiles([&](const Range& range) {
    block.load_features(range, keys, tops);
    block.load(pass.values, range, d, values);
    __syncthreads();
    Products::template add_outer<Tokens>(tops, F, values, D, matrix);
    add_rows<Tokens>(keys, F, mean);
    __syncthreads();
  });
  __syncthreads();  // there may be no keys
  T* own = block.own(sums);
  for (int i = threadIdx.x; i < f * (d + 1); i += kThreads) {
    const int r = i / (d + 1), c = i % (d + 1);
    own[i] = c < d ? matrix[r * D + c] : mean[r];
  }
}

// out_i = (q~_i S) / (q_i m + eps), with S and m as the shares of sums over parts. `kept` gets
// them.
template <int Tokens, class S, class T, class Products = FmaUnits>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(4))
    outputs_kernel(Pass<S, T> pass, Memory size, const T* sums, int64_t parts, T share, T* kept,
                   S* out) {
  Block<Tokens, S, T> block(pass, size);
  const int F = block.F, D = block.D, d = pass.streams.dims;
  T *queries = block.take_rows(F), *outputs = block.take_rows(D);
  T* tops = pass.tops.data ? block.take_rows(F) : queries;
  T* normalizers = block.take_rows(pass.streams.count);
  T *matrix = block.take(F * D), *means = block.take(pass.streams.count * F);
  block.load_sums(sums, parts, share, pass.streams, matrix, means, kept);
  block.for_tiles([&](const Range& range) {
    block.load_features(range, queries, tops);
    __syncthreads();
    Products::template product<Tokens>(matrix, D, tops, F, outputs);
    block.normalize(queries, means, normalizers);
    __syncthreads();
    block.store(outputs, range, d, out, [&](int c, int t, T value) {
      return value / normalizers[pass.streams.of(c) * kPitch<Tokens> + t];
    });
    __syncthreads();
  });
}

// With z_i = q_i m + eps, a_i = g_i / z_i and b_i = a_i out_i^T: dq~_i = S a_i and dq_i = -b_i m.
// For each part, the sums over its queries of q~_i^T a_i and of -b_i q_i. `kept` are S and m.
template <int Tokens, class S, class T, class Products = FmaUnits>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(3))
    query_gradients_kernel(Pass<S, T> pass, Memory size, const T* kept, S* dq, S* dtops, T* sums) {
  Block<Tokens, S, T> block(pass, size);
  const Streams& streams = pass.streams;
  const int F = block.F, D = block.D, f = streams.features, d = streams.dims;
  T *queries = block.take_rows(F), *grads = block.take_rows(D), *changes = block.take_rows(F);
  T* tops = pass.tops.data ? block.take_rows(F) : queries;
  T* outputs = streams.count == 2 ? block.take_rows(D) : nullptr;
  T *normalizers = block.take_rows(streams.count), *slopes = block.take_rows(streams.count);
  T *matrix = block.take(F * D), *means = block.take(streams.count * F);
  T *dmatrix = block.take_zeros(F * D), *dmeans = block.take_zeros(streams.count * F);
  block.load_sums(kept, 1, T(1), streams, matrix, means, static_cast<T*>(nullptr));
  block.for_tiles([&](const Range& range) {
    block.load_features(range, queries, tops);
    block.load(pass.values, range, d, grads);
    __syncthreads();
    block.normalize(queries, means, normalizers);
    if (outputs) Products::template product<Tokens>(matrix, D, tops, F, outputs);
    __syncthreads();
    for (int i = threadIdx.x; i < d * Tokens; i += kThreads) {  // a_i
      const int c = i / Tokens, t = i % Tokens;
      T& value = grads[c * kPitch<Tokens> + t];
      // Beyond the last token 0 / eps may be NaN.
      if (t < range.count) value /= normalizers[streams.of(c) * kPitch<Tokens> + t];
    }
    __syncthreads();
    Products::template transposed_product<Tokens>(matrix, F, grads, D, changes);
    Products::template add_outer<Tokens>(tops, F, grads, D, dmatrix);
    __syncthreads();
    for (int i = threadIdx.x; i < streams.count * Tokens; i += kThreads) {  // b_i
      const int stream = i / Tokens, t = i % Tokens;
      // q~_i S a_i z_i^-1, from S a_i, which has both streams, or from q~_i S.
      const T *left = outputs ? outputs : tops, *right = outputs ? grads : changes;
      T sum = 0;
#pragma unroll 4
      for (int r = 0; r < (outputs ? d : f); ++r) {
        if (outputs && streams.of(r) != stream) continue;
        sum += left[r * kPitch<Tokens> + t] * right[r * kPitch<Tokens> + t];
      }
      const int at = stream * kPitch<Tokens> + t;
      slopes[at] = t < range.count ? sum / normalizers[at] : T(0);
    }
    __syncthreads();
    // What goes through the normalisers.
    const auto through = [&](int r, int t) {
      T sum = slopes[t] * means[r];
      if (outputs) sum += slopes[kPitch<Tokens> + t] * means[F + r];
      return sum;
    };
    block.store(changes, range, f, dq, [&](int r, int t, T value) {
      const T change = tops == queries ? value - through(r, t) : -through(r, t);
      return change * slope(pass.features, queries[r * kPitch<Tokens> + t]);
    });
    if (tops != queries) {
      block.store(changes, range, f, dtops, [](int, int, T value) { return value; });
    }
    for (int i = threadIdx.x; i < streams.count * F; i += kThreads) {
      const T *row = queries + i % F * kPitch<Tokens>, *factors = slopes + i / F * kPitch<Tokens>;
      T sum = 0;
#pragma unroll 4
      for (int t = 0; t < Tokens; ++t) sum += row[t] * factors[t];
      dmeans[i] -= sum;
    }
    __syncthreads();
  });
  __syncthreads();  // there may be no queries
  T* own = block.own(sums);
  for (int i = threadIdx.x; i < f * (d + 1); i += kThreads) {
    const int r = i / (d + 1), c = i % (d + 1);
    own[i] = c < d ? dmatrix[streams.met(r, streams.of(c)) * D + c]
                   : dmeans[r] + (outputs ? dmeans[F + streams.met(r, 1)] : T(0));
  }
}

// dk~_j = dS v_j, dk_j = dm and dv_j = dS^T k~_j, with dS and dm as shares of sums over parts.
template <int Tokens, class S, class T, class Products = FmaUnits>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(3))
    key_gradients_kernel(Pass<S, T> pass, Memory size, const T* sums, int64_t parts, T share, S* dk,
                         S* dtops, S* dv) {
  Block<Tokens, S, T> block(pass, size);
  const int F = block.F, D = block.D, f = pass.streams.features, d = pass.streams.dims;
  T *keys = block.take_rows(F), *values = block.take_rows(D), *changes = block.take_rows(F);
  T* tops = pass.tops.data ? block.take_rows(F) : keys;
  T *matrix = block.take(F * D), *mean = block.take(F);
  const Streams keys_own{1, f, d};
  block.load_sums(sums, parts, share, keys_own, matrix, mean, static_cast<T*>(nullptr));
  block.for_tiles([&](const Range& range) {
    block.load_features(range, keys, tops);
    block.load(pass.values, range, d, values);
    __syncthreads();
    Products::template transposed_product<Tokens>(matrix, F, values, D, changes);
    __syncthreads();
    Products::template product<Tokens>(matrix, D, tops, F, values);
    block.store(changes, range, f, dk, [&](int r, int t, T value) {
      const T change = tops == keys ? value + mean[r] : mean[r];
      return change * slope(pass.features, keys[r * kPitch<Tokens> + t]);
    });
    if (tops != keys) {
      block.store(changes, range, f, dtops, [](int, int, T value) { return value; });
    }
    __syncthreads();
    block.store(values, range, d, dv, [](int, int, T value) { return value; });
    __syncthreads();
  });
}

}  // namespace device
}  // namespace linear
}  // namespace mmlaplace
