// GPU kernel of the exact inverse. A block of two warps has one matrix, its elements in registers.
//
// This is device code alone, without ATen, so that tests can also run it on a CPU
// (tests/ops/native).
#pragma once

#include "../newton_schulz_inverse/small_matrix_device.cuh"

namespace mmlaplace {
namespace device {

constexpr int kCholeskyGrid = 8;
constexpr int kCholeskyThreads = kCholeskyGrid * kCholeskyGrid;

template <int Tile, class T>
MMLAPLACE_HOST_DEVICE constexpr int cholesky_bytes() {
  using Matrix = SmallMatrix<kCholeskyGrid, Tile>;
  return (Matrix::kSize + 2 * Matrix::kSide) * static_cast<int>(sizeof(T));
}

// tile -= sums, and sums = 0.
template <int Tile, class T>
MMLAPLACE_INLINE void subtract_sums(T (&tile)[Tile][Tile], T (&sums)[Tile][Tile]) {
#pragma unroll
  for (int i = 0; i < Tile; ++i) {
#pragma unroll
    for (int j = 0; j < Tile; ++j) {
      tile[i][j] -= sums[i][j];
      sums[i][j] = 0;
    }
  }
}
// In fp64 there are not enough registers for sums, and no need.
template <int Tile>
MMLAPLACE_INLINE void subtract_sums(double (&)[Tile][Tile], double (&)[Tile][Tile]) {}

// The inverse of a matrix whose elements the threads have, by the sweeps of cholesky_inverse.h.
// `rows` is shared memory for two rows. A sweep has one barrier, since the row that it takes is in
// one of two buffers.
//
// In fp32 what Grid sweeps take is summed first, since each subtraction rounds the matrix. The
// first sweep is by itself: where all landmarks nearly coincide it takes almost all of the matrix
// away, and what is left must not be rounded together with that.
template <int Tile, class T>
MMLAPLACE_INLINE void invert_tile(T (&tile)[Tile][Tile], T* rows, int m, T infinity, T nan) {
  constexpr int Grid = kCholeskyGrid;
  constexpr bool kSums = sizeof(T) == sizeof(float);
  using Matrix = SmallMatrix<Grid, Tile>;
  const int row = threadIdx.x / Grid, column = threadIdx.x % Grid;
  T sums[Tile][Tile] = {};
  bool positive = true;
#pragma unroll
  for (int block = 0; block < Tile; ++block) {
    // Sweep k is that of the rows `block` of the threads in row `owner` of the grid.
#pragma unroll 1
    for (int owner = 0; owner < Grid; ++owner) {
      const int k = owner + Grid * block;
      if (k >= m) break;
      T* const swept = rows + k % 2 * Matrix::kSide;
      if (row == owner) {
#pragma unroll
        for (int j = 0; j < Tile; ++j)
          swept[column + Grid * j] = kSums ? tile[block][j] - sums[block][j] : tile[block][j];
      }
      __syncthreads();
      const T reciprocal = 1 / swept[k];
      // Neither of a negative number, 0, an infinity or NaN.
      positive = positive && reciprocal > 0 && reciprocal < infinity;
      T left[Tile], right[Tile];
#pragma unroll
      for (int i = 0; i < Tile; ++i) left[i] = swept[row + Grid * i] * reciprocal;
#pragma unroll
      for (int j = 0; j < Tile; ++j) right[j] = swept[column + Grid * j];
      if (row == owner) {
        left[block] = -reciprocal;
#pragma unroll
        for (int j = 0; j < Tile; ++j) tile[block][j] = sums[block][j] = 0;
      }
      if (column == owner) {
        right[block] = -1;
#pragma unroll
        for (int i = 0; i < Tile; ++i) tile[i][block] = sums[i][block] = 0;
      }
#pragma unroll
      for (int i = 0; i < Tile; ++i) {
#pragma unroll
        for (int j = 0; j < Tile; ++j) {
          if (kSums) {
            sums[i][j] += left[i] * right[j];
          } else {
            tile[i][j] -= left[i] * right[j];
          }
        }
      }
      if (block == 0 && owner == 0) subtract_sums(tile, sums);
    }
    subtract_sums(tile, sums);
  }
  const T sign = positive ? T(-1) : nan;
#pragma unroll
  for (int i = 0; i < Tile; ++i) {
#pragma unroll
    for (int j = 0; j < Tile; ++j) tile[i][j] *= sign;
  }
}

template <int Tile, class T>
__global__ void __launch_bounds__(kCholeskyThreads)
    cholesky_inverse_kernel(const T* mats, T* out, int m, T ridge, T infinity, T nan) {
  constexpr int Grid = kCholeskyGrid;
  using Matrix = SmallMatrix<Grid, Tile>;
  MMLAPLACE_SHARED_MEMORY(memory);
  T* const matrix = reinterpret_cast<T*>(memory);
  const int row = threadIdx.x / Grid, column = threadIdx.x % Grid;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * m * m;

  load_matrix<Grid, Tile>(mats + first, matrix, m);
  __syncthreads();
  T tile[Tile][Tile];
#pragma unroll
  for (int i = 0; i < Tile; ++i) {
#pragma unroll
    for (int j = 0; j < Tile; ++j) {
      const int r = row + Grid * i, c = column + Grid * j;
      tile[i][j] =
          T(0.5) * matrix[r * Matrix::kStride + c] + T(0.5) * matrix[c * Matrix::kStride + r];
      if (r == c) tile[i][j] += ridge;
    }
  }
  invert_tile(tile, matrix + Matrix::kSize, m, infinity, nan);
  write_tile<Grid>(out + first, m, tile);
}

}  // namespace device
}  // namespace mmlaplace
