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
  return (2 * Matrix::kSize + 2 * Matrix::kSide) * static_cast<int>(sizeof(T));
}

// The sweeps of cholesky_inverse.h, and then one step X <- X + X (I - P X). Each sweep has one
// barrier, since the row that it takes is in one of two buffers.
template <int Tile, class T>
__global__ void __launch_bounds__(kCholeskyThreads)
    cholesky_inverse_kernel(const T* mats, T* out, int m, T ridge, T infinity, T nan) {
  constexpr int Grid = kCholeskyGrid;
  using Matrix = SmallMatrix<Grid, Tile>;
  MMLAPLACE_SHARED_MEMORY(memory);
  T* const ridged = reinterpret_cast<T*>(memory);
  T *const inverse = ridged + Matrix::kSize, *const rows = inverse + Matrix::kSize;
  const int row = threadIdx.x / Grid, column = threadIdx.x % Grid;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * m * m;

  load_matrix<Grid, Tile>(mats + first, inverse, m);
  __syncthreads();
  T tile[Tile][Tile];
#pragma unroll
  for (int i = 0; i < Tile; ++i) {
#pragma unroll
    for (int j = 0; j < Tile; ++j) {
      const int r = row + Grid * i, c = column + Grid * j;
      tile[i][j] =
          T(0.5) * inverse[r * Matrix::kStride + c] + T(0.5) * inverse[c * Matrix::kStride + r];
      if (r == c) tile[i][j] += ridge;
    }
  }
  store_tile<Grid>(ridged, tile);

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
        for (int j = 0; j < Tile; ++j) swept[column + Grid * j] = tile[block][j];
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
        for (int j = 0; j < Tile; ++j) tile[block][j] = 0;
      }
      if (column == owner) {
        right[block] = -1;
#pragma unroll
        for (int i = 0; i < Tile; ++i) tile[i][block] = 0;
      }
#pragma unroll
      for (int i = 0; i < Tile; ++i) {
#pragma unroll
        for (int j = 0; j < Tile; ++j) tile[i][j] -= left[i] * right[j];
      }
    }
  }

  // No thread reads `inverse` since the first barrier of the sweeps.
#pragma unroll
  for (int i = 0; i < Tile; ++i) {
#pragma unroll
    for (int j = 0; j < Tile; ++j) tile[i][j] = -tile[i][j];
  }
  store_tile<Grid>(inverse, tile);
  __syncthreads();
  residual_tile<Grid>(ridged, inverse, m, tile);
  __syncthreads();  // after all threads have read the matrix, whose place the residual takes
  store_tile<Grid>(ridged, tile);
  __syncthreads();
  load_tile<Grid>(inverse, tile);
  add_product<Grid>(inverse, ridged, m, tile);
#pragma unroll
  for (int i = 0; i < Tile; ++i) {
#pragma unroll
    for (int j = 0; j < Tile; ++j) tile[i][j] = positive ? tile[i][j] : nan;
  }
  write_tile<Grid>(out + first, m, tile);
}

}  // namespace device
}  // namespace mmlaplace
