// GPU kernel of the Newton–Schulz inverse. A block has one matrix, all of it in shared memory.
//
// This is device code alone, without ATen, so that tests can also run it on a CPU
// (tests/ops/native).
#pragma once

#include "../common/strided.h"
#include "newton_schulz_inverse_stopping.h"

#ifndef MMLAPLACE_INLINE
#define MMLAPLACE_INLINE static __device__ __forceinline__
#endif
#ifndef MMLAPLACE_SHARED_MEMORY
#define MMLAPLACE_SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]
#endif

namespace mmlaplace {
namespace device {

// The layout of a matrix in shared memory: a row has newton_schulz_stride(m) values, which is m
// rounded up to whole tiles of 4 x 4.
MMLAPLACE_HOST_DEVICE inline int64_t newton_schulz_stride(int64_t m) { return ceil_div(m, 4) * 4; }
MMLAPLACE_HOST_DEVICE inline int64_t newton_schulz_threads(int64_t m) {
  const int64_t tiles = ceil_div(m, 4);
  return ceil_div(tiles * tiles, 32) * 32;
}
template <class T>
MMLAPLACE_HOST_DEVICE int64_t newton_schulz_bytes(int64_t m) {
  const int64_t stride = newton_schulz_stride(m);
  return (3 * stride * stride + stride) * static_cast<int64_t>(sizeof(T));
}

// The 4 x 4 tile of the product a b at (row, column). It is 0 where a and b are padded.
template <class T>
MMLAPLACE_INLINE void product_tile(const T* a, const T* b, int m, int stride, int row, int column,
                                   T (&tile)[4][4]) {
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) tile[i][j] = 0;
  }
  for (int k = 0; k < m; ++k) {
    T values[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) values[j] = b[k * stride + column + j];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const T factor = a[(row + i) * stride + k];
#pragma unroll
      for (int j = 0; j < 4; ++j) tile[i][j] += factor * values[j];
    }
  }
}

// The largest sum of the absolute values of a row, for every thread. NaN if a value is NaN.
template <class T>
MMLAPLACE_INLINE T row_sum_norm(const T* matrix, T* sums, int m, int stride) {
  for (int row = threadIdx.x; row < m; row += blockDim.x) {
    T sum = 0;
    for (int c = 0; c < m; ++c) {
      const T value = matrix[row * stride + c];
      sum += value < T(0) ? -value : value;
    }
    sums[row] = sum;
  }
  __syncthreads();
  T norm = 0;
  for (int row = 0; row < m; ++row)
    norm = sums[row] > norm || sums[row] != sums[row] ? sums[row] : norm;
  __syncthreads();
  return norm;
}

template <class T>
__global__ void newton_schulz_kernel(const T* mats, T* out, int m, int num_iters, T ridge,
                                     T epsilon, T infinity) {
  MMLAPLACE_SHARED_MEMORY(memory);
  const int stride = static_cast<int>(newton_schulz_stride(m)), size = stride * stride;
  T *ridged = reinterpret_cast<T*>(memory), *inverse = ridged + size, *residual = inverse + size;
  T* sums = residual + size;
  const T* mat = mats + static_cast<int64_t>(blockIdx.x) * m * m;
  const int tiles = stride / 4, tile_index = threadIdx.x;
  const bool busy = tile_index < tiles * tiles;  // the last warp may have threads that have no tile
  const int row = tile_index / tiles * 4, column = tile_index % tiles * 4;

  for (int i = threadIdx.x; i < size; i += blockDim.x) {
    const int r = i / stride, c = i % stride;
    ridged[i] =
        r < m && c < m ? mat[static_cast<int64_t>(r) * m + c] + (r == c ? ridge : T(0)) : T(0);
  }
  __syncthreads();
  const T start = 1 / row_sum_norm(ridged, sums, m, stride);
  for (int i = threadIdx.x; i < size; i += blockDim.x) {
    inverse[i] = i / stride == i % stride && i / stride < m ? start : T(0);
  }
  __syncthreads();

  T tile[4][4], previous = infinity;
  for (int step = 0; step < num_iters; ++step) {
    if (busy) {
      product_tile(ridged, inverse, m, stride, row, column, tile);
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) {
          const T identity = row + i == column + j && row + i < m ? T(1) : T(0);
          residual[(row + i) * stride + column + j] = identity - tile[i][j];
        }
      }
    }
    __syncthreads();
    if (busy) {
      product_tile(inverse, residual, m, stride, row, column, tile);
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) tile[i][j] += inverse[(row + i) * stride + column + j];
      }
    }
    __syncthreads();  // after all threads have read the old inverse
    if (busy) {
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) inverse[(row + i) * stride + column + j] = tile[i][j];
      }
    }
    const T norm = row_sum_norm(residual, sums, m, stride);
    if (newton_schulz::is_last(norm, previous, epsilon)) break;  // the same in all threads
    previous = norm;
  }
  for (int i = threadIdx.x; i < m * m; i += blockDim.x) {
    out[static_cast<int64_t>(blockIdx.x) * m * m + i] = inverse[i / m * stride + i % m];
  }
}

}  // namespace device
}  // namespace mmlaplace
