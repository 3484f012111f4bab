// GPU kernels of pooled_landmarks: means of the cells of a map of turned tokens, and the opposite.
//
// This is device code alone, without ATen, so that tests can also run it on a CPU
// (tests/ops/native). Nothing is added by atomics, so results are the same from run to run.
//
// S is the type of tokens in global memory and T that of means and sums.
#pragma once

#include "../common/strided.h"
#include "pooled_landmarks.h"

#ifndef MMLAPLACE_INLINE
#define MMLAPLACE_INLINE static __device__ __forceinline__
#endif

namespace mmlaplace {
namespace pooled {
namespace device {

constexpr int kThreads = 128;
constexpr int kSpreadTokens = 32;  // of a block of spread_kernel

// The angles of the tokens, (2, pairs, N) of any strides: cosines and sines. Threads with
// neighbouring channels read those of neighbouring pairs. See nystrom_attention for the pairs.
template <class T>
struct Turns {
  const T* table;
  int64_t sine, pair, token;  // the strides
  int pairs;                  // 0: nothing turns
  bool adjacent;
};

struct MapOfTokens {
  int64_t heads, width;
  Cells rows, columns;
  int dims;
};

// How many threads have the channels of a token: a power of 2.
MMLAPLACE_INLINE int threads_per_token(int dims) {
  int threads = 1;
  while (threads < dims && threads < kThreads) threads *= 2;
  return threads;
}

// The channel c of a token, turned by its angle, or back. value(c) are those that are not.
template <class T, class F>
MMLAPLACE_INLINE T turned(const Turns<T>& turns, int64_t token, int c, bool back, const F& value) {
  const T own = value(c);
  if (c >= 2 * turns.pairs) return own;
  const int pair = turns.adjacent ? c / 2 : c % turns.pairs;
  const bool second = turns.adjacent ? c % 2 == 1 : c >= turns.pairs;
  const int apart = turns.adjacent ? 1 : turns.pairs;
  const T* angle = turns.table + token * turns.token + pair * turns.pair;
  const T sine = second == back ? -angle[turns.sine] : angle[turns.sine];
  return own * angle[0] + value(second ? c - apart : c + apart) * sine;
}

// means[head][cell][c]. A block has a cell.
template <class S, class T>
__global__ void __launch_bounds__(kThreads)
    pool_kernel(MapOfTokens map, const S* tokens, Strides strides, Turns<T> turns, T* means) {
  __shared__ T sums[kThreads];
  const auto cells = static_cast<unsigned int>(map.rows.count * map.columns.count);
  const int cell = static_cast<int>(blockIdx.x % cells);
  const int64_t head = blockIdx.x / cells;
  const int64_t row = cell / map.columns.count, column = cell % map.columns.count;
  const int64_t top = map.rows.begin(row), left = map.columns.begin(column);
  const int width = static_cast<int>(map.columns.end(column) - left);
  const int count = static_cast<int>(map.rows.end(row) - top) * width;
  const Slice<const S> slice(tokens, strides, map.heads, head);
  const int lanes = threads_per_token(map.dims), lane = threadIdx.x % lanes;
  for (int first = 0; first < map.dims; first += lanes) {
    const int c = first + lane;
    T sum = 0;
    if (c < map.dims) {
#pragma unroll 4
      for (int i = threadIdx.x / lanes; i < count; i += kThreads / lanes) {
        const int64_t token = (top + i / width) * map.width + left + i % width;
        sum += turned(turns, token, c, false,
                      [&](int channel) { return static_cast<T>(slice.at(token, channel)); });
      }
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < static_cast<unsigned int>(lanes) && c < map.dims) {
      T total = 0;
      for (int i = lane; i < kThreads; i += lanes) total += sums[i];
      means[static_cast<int64_t>(blockIdx.x) * map.dims + c] = total * (T(1) / count);
    }
    __syncthreads();
  }
}

// shares: 1 / the length of each row of cells, and then of each column.
template <class T>
__global__ void __launch_bounds__(kThreads) shares_kernel(MapOfTokens map, T* shares) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= map.rows.count + map.columns.count) return;
  const int64_t column = i - map.rows.count;
  shares[i] = T(1) / (column < 0 ? map.rows.end(i) - map.rows.begin(i)
                                 : map.columns.end(column) - map.columns.begin(column));
}

// The transpose: a token (B, N, heads, d) gets its share of the gradients of the cells that have
// it. A block has kSpreadTokens of a head.
template <class S, class T>
__global__ void __launch_bounds__(kThreads)
    spread_kernel(MapOfTokens map, const T* grads, const T* shares, Turns<T> turns, S* out) {
  __shared__ int cells[kSpreadTokens][4];  // the first and last rows and columns of cells
  const int64_t count = map.rows.size * map.width;
  const auto blocks = static_cast<unsigned int>(ceil_div(count, kSpreadTokens));
  const int64_t head = blockIdx.x / blocks;
  const int64_t first = static_cast<int64_t>(blockIdx.x % blocks) * kSpreadTokens;
  const int tokens =
      static_cast<int>(count - first < kSpreadTokens ? count - first : kSpreadTokens);
  for (int i = threadIdx.x; i < tokens; i += kThreads) {
    const int64_t y = (first + i) / map.width, x = (first + i) % map.width;
    cells[i][0] = static_cast<int>(map.rows.first_with(y));
    cells[i][1] = static_cast<int>(map.rows.last_with(y));
    cells[i][2] = static_cast<int>(map.columns.first_with(x));
    cells[i][3] = static_cast<int>(map.columns.last_with(x));
  }
  __syncthreads();
  const T* grads_of = grads + head * map.rows.count * map.columns.count * map.dims;
  const int lanes = threads_per_token(map.dims);
  for (int i = threadIdx.x / lanes; i < tokens; i += kThreads / lanes) {
    const int64_t token = first + i;
    S* to = out + ((head / map.heads * count + token) * map.heads + head % map.heads) * map.dims;
    for (int c = threadIdx.x % lanes; c < map.dims; c += lanes) {
      to[c] = static_cast<S>(turned(turns, token, c, true, [&](int channel) {
        T sum = 0;
        for (int row = cells[i][0]; row <= cells[i][1]; ++row) {
          const T* from = grads_of + row * map.columns.count * map.dims + channel;
          T in_row = 0;
          for (int column = cells[i][2]; column <= cells[i][3]; ++column) {
            in_row += from[column * map.dims] * shares[map.rows.count + column];
          }
          sum += in_row * shares[row];
        }
        return sum;
      }));
    }
  }
}

}  // namespace device
}  // namespace pooled
}  // namespace mmlaplace
