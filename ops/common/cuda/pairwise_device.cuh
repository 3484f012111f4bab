// GPU kernels of differences: forward and backward, for any metric of metrics.h.
//
// This is device code alone, without ATen, so that tests can also run it on a CPU
// (tests/ops/native). Nothing here depends on the architecture. There are no float atomics, so
// results are the same from run to run.
//
// The template parameters are <Metric, S, T, ThreadsN, ThreadsM>: a metric of metrics.h, the type S
// in which values are stored, the type T in which sums are accumulated, and the threads of a block
// along the queries and along the keys.
#pragma once

#include "../metrics.h"
#include "../strided.h"

#ifndef MMLAPLACE_INLINE
#define MMLAPLACE_INLINE static __device__ __forceinline__
#endif

namespace mmlaplace {
namespace device {

template <class T>
MMLAPLACE_INLINE T abs(T value) {
  return value < T(0) ? -value : value;
}
template <class T>
MMLAPLACE_INLINE T sign(T value) {
  return value > T(0) ? T(1) : value < T(0) ? T(-1) : T(0);
}
#include "../metric_functions.h"

// Four values. One 16-byte access moves them, or two if they are doubles.
template <class T>
struct alignas(16) Quad {
  T values[4];
};

template <class S>
struct PairwiseArguments {
  const S *q, *k;
  Strides q_strides, k_strides;
  int64_t heads, queries, keys, dims;
};

// Copies rows [first, first + Rows) and channels [channel, channel + Channels) of a slice to a tile
// [channel][row] in shared memory, with 0 beyond the edge of the slice. A quad of padding lets the
// rows of the tile start in different banks. If `quads`, the slice is read in quads.
template <int Rows, int Channels, class S, class T>
MMLAPLACE_INLINE void load_tile(const Slice<const S>& slice, int64_t rows, int64_t dims,
                                int64_t first, int64_t channel, bool quads, T (*tile)[Rows + 4]) {
  const int threads = blockDim.x;
  if (quads) {
    for (int i = threadIdx.x; i < Rows * Channels / 4; i += threads) {
      const int row = i / (Channels / 4), c = i % (Channels / 4) * 4;
      // A quad of halves has 8 bytes and is aligned to no more.
      struct alignas(4 * sizeof(S) < 16 ? 4 * sizeof(S) : 16) Source {
        S values[4];
      } source = {};
      if (first + row < rows && channel + c < dims) {
        source = *reinterpret_cast<const Source*>(slice.row(first + row) + channel + c);
      }
      for (int u = 0; u < 4; ++u) tile[c + u][row] = static_cast<T>(source.values[u]);
    }
  } else {
    for (int i = threadIdx.x; i < Rows * Channels; i += threads) {
      const int row = i / Channels, c = i % Channels;
      const bool inside = first + row < rows && channel + c < dims;
      tile[c][row] = inside ? static_cast<T>(slice.at(first + row, channel + c)) : T(0);
    }
  }
}

// The kernel of a tile of 8 * ThreadsN queries and 4 * ThreadsM keys. A thread has 8 adjacent
// queries, which it reads as quads, and 4 keys that are ThreadsM apart, so that a warp writes
// adjacent values for every M.
template <class Metric, class S, class T, int ThreadsN, int ThreadsM>
__global__ void __launch_bounds__(ThreadsN* ThreadsM)
    forward_kernel(PairwiseArguments<S> arguments, S* out, T exponent, bool q_quads, bool k_quads) {
  constexpr int kQueries = 8, kKeys = 4, kChannels = 16;
  constexpr int tile_n = kQueries * ThreadsN, tile_m = kKeys * ThreadsM;
  __shared__ __align__(16) T q_tile[kChannels][tile_n + 4];
  __shared__ __align__(16) T k_tile[kChannels][tile_m + 4];

  const int64_t tiles_m = ceil_div(arguments.keys, tile_m),
                tiles_n = ceil_div(arguments.queries, tile_n);
  const int64_t block = blockIdx.x, batch_head = block / (tiles_m * tiles_n);
  const int64_t first_n = block / tiles_m % tiles_n * tile_n, first_m = block % tiles_m * tile_m;
  const Slice<const S> q(arguments.q, arguments.q_strides, arguments.heads, batch_head);
  const Slice<const S> k(arguments.k, arguments.k_strides, arguments.heads, batch_head);
  const int thread_m = threadIdx.x % ThreadsM, thread_n = threadIdx.x / ThreadsM;

  T sums[kQueries][kKeys] = {};
  for (int64_t channel = 0; channel < arguments.dims; channel += kChannels) {
    load_tile<tile_n, kChannels>(q, arguments.queries, arguments.dims, first_n, channel, q_quads,
                                 q_tile);
    load_tile<tile_m, kChannels>(k, arguments.keys, arguments.dims, first_m, channel, k_quads,
                                 k_tile);
    __syncthreads();
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {  // channels beyond dims are 0 in both tiles
      const Quad<T> low = *reinterpret_cast<const Quad<T>*>(&q_tile[c][thread_n * kQueries]);
      const Quad<T> high = *reinterpret_cast<const Quad<T>*>(&q_tile[c][thread_n * kQueries + 4]);
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        const T key = k_tile[c][thread_m + j * ThreadsM];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[i][j] = accumulate(Metric{}, sums[i][j], low.values[i] - key);
          sums[i + 4][j] = accumulate(Metric{}, sums[i + 4][j], high.values[i] - key);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    const int64_t n = first_n + thread_n * kQueries + i;
    if (n >= arguments.queries) break;
    S* row = out + (batch_head * arguments.queries + n) * arguments.keys;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const int64_t m = first_m + thread_m + j * ThreadsM;
      if (m < arguments.keys) row[m] = static_cast<S>(exp2(sums[i][j] * exponent));
    }
  }
}

template <class S>
struct GradientArguments {
  const S *rows, *columns, *grad, *out;
  Strides row_strides, column_strides, grad_strides, out_strides;  // grad and out: [row][column]
  int64_t heads, num_rows, num_columns, dims;
  int64_t chunk;  // the number of columns that a block sums over
};

// The gradient of the rows: sums[chunk][batch_head][row][c] is the sum, over the columns of the
// chunk, of weight * slope(row_c - column_c). Rows are the queries and columns the keys. It may
// also be the other way round, as slopes are odd functions. A thread has 4 rows and 4 channels, a
// block 64 rows and 32 channels. Out is S for a result, and T for sums that are added later.
template <class Metric, class S, class T, class Out>
__global__ void __launch_bounds__(128)
    gradient_kernel(GradientArguments<S> arguments, Out* sums, T derivative) {
  constexpr int kRows = 64, kChannels = 32, kStep = 32;
  __shared__ __align__(16) T columns[kStep][kChannels + 4];
  __shared__ __align__(16) T weights[kStep][kRows + 4];

  const int64_t row_tiles = ceil_div(arguments.num_rows, kRows);
  const int64_t channel_tiles = ceil_div(arguments.dims, kChannels);
  const int64_t chunks = ceil_div(arguments.num_columns, arguments.chunk);
  int64_t block = blockIdx.x;
  const int64_t first_channel = block % channel_tiles * kChannels;
  block /= channel_tiles;
  const int64_t first_row = block % row_tiles * kRows;
  block /= row_tiles;
  const int64_t part = block % chunks, batch_head = block / chunks;

  const Slice<const S> row_slice(arguments.rows, arguments.row_strides, arguments.heads,
                                 batch_head);
  const Slice<const S> column_slice(arguments.columns, arguments.column_strides, arguments.heads,
                                    batch_head);
  const Slice<const S> grad(arguments.grad, arguments.grad_strides, arguments.heads, batch_head);
  const Slice<const S> out(arguments.out, arguments.out_strides, arguments.heads, batch_head);
  const int my_channel = threadIdx.x % 8 * 4, my_row = threadIdx.x / 8 * 4;

  T values[4][4], result[4][4] = {};
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 4; ++c) {
      const int64_t row = first_row + my_row + r, channel = first_channel + my_channel + c;
      const bool inside = row < arguments.num_rows && channel < arguments.dims;
      values[r][c] = inside ? static_cast<T>(row_slice.at(row, channel)) : T(0);
    }
  }
  // So that neighbouring threads read neighbouring values of grad and out.
  const bool rows_adjacent = out.row_stride < out.column_stride;
  const int64_t begin = part * arguments.chunk;
  const int64_t end = begin + arguments.chunk < arguments.num_columns ? begin + arguments.chunk
                                                                      : arguments.num_columns;
  for (int64_t first = begin; first < end; first += kStep) {
    for (int i = threadIdx.x; i < kStep * kChannels; i += 128) {
      const int j = i / kChannels, c = i % kChannels;
      const bool inside = first + j < end && first_channel + c < arguments.dims;
      columns[j][c] = inside ? static_cast<T>(column_slice.at(first + j, first_channel + c)) : T(0);
    }
    for (int i = threadIdx.x; i < kStep * kRows; i += 128) {
      const int j = rows_adjacent ? i / kRows : i % kStep,
                r = rows_adjacent ? i % kRows : i / kStep;
      const int64_t row = first_row + r, column = first + j;
      const bool inside = row < arguments.num_rows && column < end;
      weights[j][r] = inside ? derivative * static_cast<T>(grad.at(row, column)) *
                                   static_cast<T>(out.at(row, column))
                             : T(0);  // beyond the edge nothing is added
    }
    __syncthreads();
#pragma unroll 4
    for (int j = 0; j < kStep; ++j) {
      const Quad<T> column = *reinterpret_cast<const Quad<T>*>(&columns[j][my_channel]);
      const Quad<T> weight = *reinterpret_cast<const Quad<T>*>(&weights[j][my_row]);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          result[r][c] += slope(Metric{}, weight.values[r], values[r][c] - column.values[c]);
        }
      }
    }
    __syncthreads();
  }
  const int64_t batch_heads = gridDim.x / (channel_tiles * row_tiles * chunks);
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 4; ++c) {
      const int64_t row = first_row + my_row + r, channel = first_channel + my_channel + c;
      if (row < arguments.num_rows && channel < arguments.dims) {
        sums[((part * batch_heads + batch_head) * arguments.num_rows + row) * arguments.dims +
             channel] = static_cast<Out>(result[r][c]);
      }
    }
  }
}

}  // namespace device
}  // namespace mmlaplace
