// GPU kernels of differences: forward and backward, for any metric of metrics.h.
//
// This is device code alone, without ATen, so that tests can also run it on a CPU
// (tests/ops/native). Nothing here depends on the architecture. There are no float atomics, so
// results are the same from run to run. What the compiler makes of it for one architecture,
// .dev_scripts/check_cuda_code.py counts and limits.
//
// The template parameters are <Metric, S, T, ...>: a metric of metrics.h, the type S in which
// values are stored, the type T in which sums are accumulated, and the sizes of a tile.
#pragma once

#ifdef __CUDACC__
#include <cuda_pipeline_primitives.h>
#endif

#include <type_traits>

#include "../metrics.h"
#include "../strided.h"

#ifndef MMLAPLACE_INLINE
#define MMLAPLACE_INLINE static __device__ __forceinline__
#endif

namespace mmlaplace {
namespace device {

// fabs costs nothing, as |x| is a modifier of an addition's operand. A comparison with 0 and a
// choice would be two instructions more, since they treat -0 and NaN in another way.
template <class T>
MMLAPLACE_INLINE T abs(T value) {
  return fabs(value);
}
// A comparison and a bit operation. NaN becomes 1 or -1; the weight that multiplies it is NaN too,
// as the kernel's value is.
template <class T>
MMLAPLACE_INLINE T sign(T value) {
  return copysign(value != T(0) ? T(1) : T(0), value);
}
#include "../metric_functions.h"

// The channels of a tile in shared memory: all of them for the usual head dims in fp32.
template <class T>
constexpr int kTileChannels = sizeof(T) > 4 ? 16 : 32;

// The blocks that a multiprocessor must have room for, by which the compiler limits registers. For
// doubles, which need twice as many, there is no limit: they are for checks of derivatives.
template <class T>
constexpr int blocks_per_processor(int blocks) {
  return sizeof(T) > 4 ? 1 : blocks;
}

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
  bool q_quads, k_quads;  // whether load_tile may read them in quads
};

// Copies rows [first, first + Rows) and channels [channel, channel + Channels) of a slice to a tile
// [row][channel] in shared memory, with 0 beyond the edge of the slice. A quad of padding lets
// neighbouring rows start in different banks. If `quads`, the slice is read in quads. Values that
// need no conversion are then copied in the background, until finish_tiles().
template <int Rows, int Channels, int Threads, class S, class T>
MMLAPLACE_INLINE void load_tile(const Slice<const S>& slice, int64_t rows, int dims, int64_t first,
                                int channel, bool quads, T (*tile)[Channels + 4]) {
  constexpr int kLanes = Channels / 4, kStep = Threads / kLanes;
  static_assert(Threads % kLanes == 0, "a thread keeps its channels");
  constexpr bool kSame = std::is_same<S, T>::value;
  // A quad of halves has 8 bytes and is aligned to no more.
  struct alignas(4 * sizeof(S) < 16 ? 4 * sizeof(S) : 16) Source {
    S values[4];
  };
  const int c = threadIdx.x % kLanes * 4, my_row = threadIdx.x / kLanes;
  const int rows_inside = static_cast<int>(rows - first < Rows ? rows - first : Rows);
  const int channels_inside = dims - channel - c < 4 ? dims - channel - c : 4;
  quads = quads && channels_inside > 0;
  // The offset is taken in 64 bits once; then a pointer walks.
  const S* source = slice.data + (first + my_row) * slice.row_stride;
  source += (channel + c) * slice.column_stride;
  const int64_t step = kStep * slice.row_stride;
  // Two reads that a thread waits for overlap. Those in the background do so anyway. More would
  // cost registers that the sums need.
#pragma unroll(kSame ? 1 : 2)
  for (int row = my_row; row < Rows; row += kStep, source += step) {
    if (quads && row < rows_inside) {
      if constexpr (kSame) {
#pragma unroll
        for (int u = 0; u < 4; u += 16 / sizeof(S)) {
          __pipeline_memcpy_async(&tile[row][c + u], source + u, 16);
        }
      } else {
        const Source values = *reinterpret_cast<const Source*>(source);
        Quad<T> quad;
#pragma unroll
        for (int u = 0; u < 4; ++u) quad.values[u] = static_cast<T>(values.values[u]);
        *reinterpret_cast<Quad<T>*>(&tile[row][c]) = quad;
      }
    } else {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const bool inside = row < rows_inside && u < channels_inside;
        tile[row][c + u] = inside ? static_cast<T>(source[u * slice.column_stride]) : T(0);
      }
    }
  }
}

// Reads adjacent values of shared memory, the first of which is aligned: in pairs or quads.
template <int Count, class T>
MMLAPLACE_INLINE void read_shared(const T* from, T (&to)[Count]) {
  constexpr int kWidth = Count < 4 ? 2 : 4;
  struct alignas(kWidth * sizeof(T) < 16 ? kWidth * sizeof(T) : 16) Values {
    T values[kWidth];
  };
#pragma unroll
  for (int i = 0; i < Count; i += kWidth) {
    if (i + kWidth <= Count) {
      const Values values = *reinterpret_cast<const Values*>(from + i);
#pragma unroll
      for (int u = 0; u < kWidth; ++u) to[i + u] = values.values[u];
    } else {
#pragma unroll
      for (int u = 0; u < Count % kWidth; ++u) to[i + u] = from[i + u];
    }
  }
}

// Waits for the tiles of all threads of the block.
MMLAPLACE_INLINE void finish_tiles() {
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
}

// The shapes of a block of forward_kernel: the queries and keys of a thread, and the threads along
// each. Whole warps, and few loads for each difference.
template <int Queries, int Keys, int ThreadsN, int ThreadsM>
struct ForwardTile {
  static constexpr int kQueries = Queries, kKeys = Keys;
  static constexpr int kThreadsN = ThreadsN, kThreadsM = ThreadsM, kThreads = ThreadsN * ThreadsM;
  static constexpr int kTileN = Queries * ThreadsN, kTileM = Keys * ThreadsM;
  static constexpr int kBlocks = 512 / kThreads;  // 16 warps with 128 registers
  static_assert(kThreads % 32 == 0, "whole warps");
};
using ForwardTile64 = ForwardTile<4, 16, 32, 4>;
using ForwardTile52 = ForwardTile<4, 13, 32, 4>;  // for 49 keys
using ForwardTile32 = ForwardTile<4, 8, 8, 4>;    // for few queries, as blocks are many then

// The kernel of a tile of queries and keys. A thread has queries that are ThreadsN apart and keys
// that are ThreadsM apart: the rows of the tiles that a warp reads at a time lie next to each
// other, in different banks.
template <class Metric, class S, class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, blocks_per_processor<T>(Tile::kBlocks))
    forward_kernel(PairwiseArguments<S> arguments, S* out, T exponent) {
  constexpr int kQueries = Tile::kQueries, kKeys = Tile::kKeys, kChannels = kTileChannels<T>;
  constexpr int kTileN = Tile::kTileN, kTileM = Tile::kTileM, kPitch = kChannels + 4;
  constexpr int kInputs = (kTileN + kTileM) * kPitch, kResults = kTileN * kTileM;
  // The results take the place of the inputs.
  __shared__ __align__(16) T memory[kInputs > kResults ? kInputs : kResults];
  T(*const q_tile)[kPitch] = reinterpret_cast<T(*)[kPitch]>(memory);
  T(*const k_tile)[kPitch] = q_tile + kTileN;
  T(*const results)[kTileM] = reinterpret_cast<T(*)[kTileM]>(memory);

  // Counts of blocks fit 32 bits, as the grid does. What is multiplied by them is of 64 bits.
  const auto tiles_m = static_cast<unsigned int>(ceil_div(arguments.keys, kTileM)),
             tiles_n = static_cast<unsigned int>(ceil_div(arguments.queries, kTileN));
  const unsigned int block = blockIdx.x / tiles_m;
  const int64_t first_m = static_cast<int64_t>(blockIdx.x % tiles_m) * kTileM;
  const int64_t first_n = static_cast<int64_t>(block % tiles_n) * kTileN;
  const int64_t batch_head = block / tiles_n;
  const Slice<const S> q(arguments.q, arguments.q_strides, arguments.heads, batch_head);
  const Slice<const S> k(arguments.k, arguments.k_strides, arguments.heads, batch_head);
  const int thread_m = threadIdx.x % Tile::kThreadsM, thread_n = threadIdx.x / Tile::kThreadsM;

  T sums[kQueries][kKeys] = {};
  const int dims = static_cast<int>(arguments.dims);
  for (int channel = 0; channel < dims; channel += kChannels) {
    load_tile<kTileN, kChannels, Tile::kThreads>(q, arguments.queries, dims, first_n, channel,
                                                 arguments.q_quads, q_tile);
    load_tile<kTileM, kChannels, Tile::kThreads>(k, arguments.keys, dims, first_m, channel,
                                                 arguments.k_quads, k_tile);
    finish_tiles();
    const int channels = dims - channel < kChannels ? dims - channel : kChannels;
    // Channels beyond dims are 0 in both tiles. A step has enough to do without being unrolled, and
    // stays in the cache of instructions.
#pragma unroll 1
    for (int c = 0; c < channels; c += 4) {
      T queries[kQueries][4], key[4];
#pragma unroll
      for (int i = 0; i < kQueries; ++i) {
        read_shared(&q_tile[thread_n + i * Tile::kThreadsN][c], queries[i]);
      }
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        read_shared(&k_tile[thread_m + j * Tile::kThreadsM][c], key);
#pragma unroll
        for (int u = 0; u < 4; ++u) {
#pragma unroll
          for (int i = 0; i < kQueries; ++i) {
            sums[i][j] = accumulate(Metric{}, sums[i][j], queries[i][u] - key[u]);
          }
        }
      }
    }
    __syncthreads();  // the tiles have been read
  }
  // By way of shared memory, so that a warp writes adjacent values.
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      results[thread_n + i * Tile::kThreadsN][thread_m + j * Tile::kThreadsM] =
          exp2(sums[i][j] * exponent);
    }
  }
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t rows_left = arguments.queries - first_n, columns_left = arguments.keys - first_m;
  const int rows = static_cast<int>(rows_left < kTileN ? rows_left : kTileN);
  const int columns = static_cast<int>(columns_left < kTileM ? columns_left : kTileM);
  S* row = out + (batch_head * arguments.queries + first_n + warp) * arguments.keys + first_m;
#pragma unroll 4
  for (int n = warp; n < rows; n += Tile::kThreads / 32) {
#pragma unroll
    for (int m = lane; m < kTileM; m += 32) {
      if (m < columns) row[m] = static_cast<S>(results[n][m]);
    }
    row += Tile::kThreads / 32 * arguments.keys;
  }
}

template <class S>
struct GradientArguments {
  const S *rows, *columns, *grad, *out;
  Strides row_strides, column_strides, grad_strides, out_strides;  // grad and out: [row][column]
  int64_t heads, num_rows, num_columns, dims;
  int64_t chunk;      // the number of columns that a block sums over
  bool column_quads;  // whether load_tile may read them in quads
};

// The shapes of a block of gradient_kernel: what a thread has, and how many threads there are along
// the rows. All have 128 threads and 32 channels. If these are more than a tile takes, the threads
// divide the columns into parts.
template <int Rows, int Channels, int Groups>
struct GradientTile {
  static constexpr int kThreads = 128, kBlockChannels = 32;
  static constexpr int kRows = Rows, kChannels = Channels, kGroups = Groups;
  static constexpr int kBlockRows = Rows * Groups;
  static constexpr int kLanes = kBlockChannels / Channels;
  static constexpr int kParts = kThreads / (kLanes * Groups);
  static constexpr int kBlocks = 5;  // 20 warps with 96 registers
  static_assert(kParts == 1 || kParts == 2, "the sums of two parts can be added");
};
using GradientTile64 = GradientTile<4, 4, 16>;
using GradientTile52 = GradientTile<13, 2, 4>;  // for 49 rows

// The gradient of the rows: sums[chunk][batch_head][row][c] is the sum, over the columns of the
// chunk, of weight * slope(row_c - column_c). Rows are the queries and columns the keys. It may
// also be the other way round, as slopes are odd functions. Out is S for a result, and T for sums
// that are added later.
template <class Metric, class S, class T, class Out, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, blocks_per_processor<T>(Tile::kBlocks))
    gradient_kernel(GradientArguments<S> arguments, Out* sums, T derivative) {
  constexpr int kStep = 32, kUnroll = 4;  // columns in shared memory, and in a step of the loop
  constexpr int kRows = Tile::kRows, kChannels = Tile::kChannels;
  constexpr int kBlockRows = Tile::kBlockRows, kBlockChannels = Tile::kBlockChannels;
  // The weights of a thread's rows begin with a quad.
  constexpr int kPitch = (kRows + 3) / 4 * 4;
  __shared__ __align__(16) T columns[kStep][kBlockChannels + 4];
  __shared__ __align__(16) T weights[kStep][Tile::kGroups * kPitch + 4];

  // As in the forward: 32 bits for counts of blocks.
  const auto row_tiles = static_cast<unsigned int>(ceil_div(arguments.num_rows, kBlockRows));
  const auto channel_tiles = static_cast<unsigned int>(ceil_div(arguments.dims, kBlockChannels));
  const auto chunks = static_cast<unsigned int>(ceil_div(arguments.num_columns, arguments.chunk));
  unsigned int block = blockIdx.x;
  const int first_channel = static_cast<int>(block % channel_tiles) * kBlockChannels;
  block /= channel_tiles;
  const int64_t first_row = static_cast<int64_t>(block % row_tiles) * kBlockRows;
  block /= row_tiles;
  const int64_t part = block % chunks, batch_head = block / chunks;

  const Slice<const S> row_slice(arguments.rows, arguments.row_strides, arguments.heads,
                                 batch_head);
  const Slice<const S> column_slice(arguments.columns, arguments.column_strides, arguments.heads,
                                    batch_head);
  const Slice<const S> grad(arguments.grad, arguments.grad_strides, arguments.heads, batch_head);
  const Slice<const S> out(arguments.out, arguments.out_strides, arguments.heads, batch_head);
  const int thread = threadIdx.x, my_channel = thread % Tile::kLanes * kChannels;
  const int my_group = thread / Tile::kLanes % Tile::kGroups;
  const int my_part = thread / Tile::kLanes / Tile::kGroups;
  const int dims = static_cast<int>(arguments.dims), channel = first_channel + my_channel;
  const int64_t row = first_row + my_group * kRows;

  T values[kRows][kChannels], result[kRows][kChannels] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const bool inside = row + r < arguments.num_rows && channel + c < dims;
      values[r][c] = inside ? static_cast<T>(row_slice.at(row + r, channel + c)) : T(0);
    }
  }
  // A warp reads grad and out where they are adjacent: 4 rows of 8 columns, or 2 columns of 16
  // rows. It writes the weights to as many banks as it has threads.
  const bool rows_adjacent = out.row_stride < out.column_stride;
  const int load_row = rows_adjacent ? thread % 16 : thread / 8;
  const int load_column = rows_adjacent ? thread / 32 + thread / 16 % 2 * 4 : thread % 8;
  const int rows_inside = static_cast<int>(
      arguments.num_rows - first_row < kBlockRows ? arguments.num_rows - first_row : kBlockRows);

  const int64_t begin = part * arguments.chunk;
  const int64_t end = begin + arguments.chunk < arguments.num_columns ? begin + arguments.chunk
                                                                      : arguments.num_columns;
  for (int64_t first = begin; first < end; first += kStep) {
    const int count = static_cast<int>(end - first < kStep ? end - first : kStep);
    load_tile<kStep, kBlockChannels, Tile::kThreads>(column_slice, end, dims, first, first_channel,
                                                     arguments.column_quads, columns);
#pragma unroll 1
    for (int r = load_row; r < kBlockRows; r += 16) {
      const S* grad_at = &grad.at(first_row + r, first + load_column);
      const S* out_at = &out.at(first_row + r, first + load_column);
      const int position = r / kRows * kPitch + r % kRows;
#pragma unroll
      for (int j = 0; j < kStep; j += 8) {
        const bool inside = r < rows_inside && load_column + j < count;
        weights[load_column + j][position] =
            inside ? derivative * static_cast<T>(grad_at[j * grad.column_stride]) *
                         static_cast<T>(out_at[j * out.column_stride])
                   : T(0);  // beyond the edge nothing is added
      }
    }
    finish_tiles();
#pragma unroll 1
    for (int step = my_part; step < count; step += kUnroll * Tile::kParts) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int j = step + u * Tile::kParts;
        T column[kChannels], weight[kRows];
        read_shared(&columns[j][my_channel], column);
        read_shared(&weights[j][my_group * kPitch], weight);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int c = 0; c < kChannels; ++c) {
            result[r][c] += slope(Metric{}, weight[r], values[r][c] - column[c]);
          }
        }
      }
    }
    __syncthreads();
  }
  if constexpr (Tile::kParts == 2) {  // the sums of the second part, by way of the weights' memory
    T* others = &weights[0][0] + thread % (Tile::kThreads / 2);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        if (my_part == 1) others[(r * kChannels + c) * (Tile::kThreads / 2)] = result[r][c];
      }
    }
    __syncthreads();
    if (my_part == 1) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        result[r][c] += others[(r * kChannels + c) * (Tile::kThreads / 2)];
      }
    }
  }
  const int64_t batch_heads = gridDim.x / (channel_tiles * row_tiles * chunks);
  Out* sum = sums + ((part * batch_heads + batch_head) * arguments.num_rows + row) * arguments.dims;
#pragma unroll
  for (int r = 0; r < kRows; ++r, sum += arguments.dims) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      if (row + r < arguments.num_rows && channel + c < dims) {
        sum[channel + c] = static_cast<Out>(result[r][c]);
      }
    }
  }
}

}  // namespace device
}  // namespace mmlaplace
