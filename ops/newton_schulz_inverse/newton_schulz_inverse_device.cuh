// GPU kernels of the Newton–Schulz inverse and of its start. A block has one matrix, all of it in
// shared memory.
//
// This is device code alone, without ATen, so that tests can also run it on a CPU
// (tests/ops/native).
#pragma once

#include "newton_schulz_inverse_rules.h"
#include "small_matrix_device.cuh"

namespace mmlaplace {
namespace device {

// Sums of absolute values over the rows or the columns of a matrix, and the largest of them. Each
// thread adds its elements first. A row of `partial` has the sums of the threads of a row or a
// column of the grid, and its stride keeps a warp in different banks.
template <int Grid, int Tile, class T>
struct NormMemory {
  static constexpr int kSide = Grid * Tile, kStride = kSide + 4;
  T partial[Grid * kStride];
  typename BitsOf<T>::type largest[2];  // of this step and of the one before or after
};

template <int Grid, int Tile, class T>
MMLAPLACE_INLINE T abs_sum_of(const NormMemory<Grid, Tile, T>& norm, int index) {
  T sum = 0;
#pragma unroll
  for (int part = 0; part < Grid; ++part)
    sum += norm.partial[part * NormMemory<Grid, Tile, T>::kStride + index];
  return sum;
}

// The parts of the sums over rows. A barrier has to follow.
template <int Grid, int Tile, class T>
MMLAPLACE_INLINE void add_rows(const T (&tile)[Tile][Tile], NormMemory<Grid, Tile, T>& norm) {
  const int row = threadIdx.x / Grid, column = threadIdx.x % Grid;
#pragma unroll
  for (int i = 0; i < Tile; ++i) {
    T sum = 0;
#pragma unroll
    for (int j = 0; j < Tile; ++j) sum += fabs(tile[i][j]);
    norm.partial[column * NormMemory<Grid, Tile, T>::kStride + row + Grid * i] = sum;
  }
}

// The largest sum, after a further barrier in norm.largest[slot]. NaN if one is NaN.
template <int Grid, int Tile, class T>
MMLAPLACE_INLINE void add_largest(NormMemory<Grid, Tile, T>& norm, int slot) {
  for (int i = threadIdx.x; i < Grid * Tile; i += Grid * Grid)
    atomicMax(&norm.largest[slot], bits_of(fabs(abs_sum_of<Grid, Tile>(norm, i))));
}

template <int Grid, int Tile, class T>
MMLAPLACE_HOST_DEVICE constexpr int newton_schulz_bytes() {
  return 3 * SmallMatrix<Grid, Tile>::kSize * static_cast<int>(sizeof(T)) +
         static_cast<int>(sizeof(NormMemory<Grid, Tile, T>)) + 16;
}

// `scales` has the alpha of each matrix, or is null.
template <int Grid, int Tile, class T>
__global__ void __launch_bounds__(Grid* Grid)
    newton_schulz_kernel(const T* mats, const T* scales, T* out, int m, int num_iters, T ridge,
                         T epsilon, T infinity) {
  constexpr int size = SmallMatrix<Grid, Tile>::kSize;
  MMLAPLACE_SHARED_MEMORY(memory);
  auto& norm = *reinterpret_cast<NormMemory<Grid, Tile, T>*>(memory);
  constexpr int offset = (sizeof(norm) + 15) / 16 * 16;
  T* const ridged = reinterpret_cast<T*>(memory + offset);
  T *const inverse = ridged + size, *const residual = inverse + size;
  const int row = threadIdx.x / Grid, column = threadIdx.x % Grid;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * m * m;

  load_matrix<Grid, Tile>(mats + first, ridged, m);
  if (threadIdx.x < 2) norm.largest[threadIdx.x] = 0;
  __syncthreads();
  T tile[Tile][Tile];
  for (int i = threadIdx.x; i < m; i += Grid * Grid)
    ridged[i * SmallMatrix<Grid, Tile>::kStride + i] += ridge;
  __syncthreads();
  load_tile<Grid>(ridged, tile);
  if (scales != nullptr) {
    const T scale = scales[blockIdx.x];
#pragma unroll
    for (int i = 0; i < Tile; ++i) {
#pragma unroll
      for (int j = 0; j < Tile; ++j) tile[i][j] *= scale;
    }
  } else {
    add_rows(tile, norm);
    __syncthreads();
    add_largest(norm, 1);
    __syncthreads();
    const T start = 1 / of_bits(norm.largest[1]);
#pragma unroll
    for (int i = 0; i < Tile; ++i) {
#pragma unroll
      for (int j = 0; j < Tile; ++j)
        tile[i][j] = i == j && row == column && row + Grid * i < m ? start : T(0);
    }
  }
  store_tile<Grid>(inverse, tile);
  __syncthreads();

  T previous = infinity;
  for (int step = 0; step < num_iters; ++step) {
    const int slot = step % 2;
    residual_tile<Grid>(ridged, inverse, m, tile);
    store_tile<Grid>(residual, tile);
    add_rows(tile, norm);
    __syncthreads();
    if (threadIdx.x == 0) norm.largest[1 - slot] = 0;  // which all threads have read
    add_largest(norm, slot);
    load_tile<Grid>(inverse, tile);
    add_product<Grid>(inverse, residual, m, tile);
    __syncthreads();  // after all threads have read the old inverse
    store_tile<Grid>(inverse, tile);
    const T largest = of_bits(norm.largest[slot]);
    const bool last = newton_schulz::is_last(largest, previous, epsilon);
    previous = largest;
    if (last) break;  // the same in all threads
    __syncthreads();
  }
  write_tile<Grid>(out + first, m, tile);
}

template <int Grid, int Tile, class T>
MMLAPLACE_HOST_DEVICE constexpr int start_limits_bytes() {
  return SmallMatrix<Grid, Tile>::kSize * static_cast<int>(sizeof(T)) +
         static_cast<int>(sizeof(NormMemory<Grid, Tile, T>)) + 16;
}

// What newton_schulz_inverse_rules.h asks of each matrix: limits[0] is the largest row sum and, if
// `halve`, limits[batch] the largest bound of a column of W^2. W is not negative.
template <int Grid, int Tile, class T>
__global__ void __launch_bounds__(Grid* Grid)
    start_limits_kernel(const T* mats, T* limits, int m, int64_t batch, bool halve) {
  MMLAPLACE_SHARED_MEMORY(memory);
  auto& norm = *reinterpret_cast<NormMemory<Grid, Tile, T>*>(memory);
  constexpr int offset = (sizeof(norm) + 15) / 16 * 16;
  T* const matrix = reinterpret_cast<T*>(memory + offset);
  load_matrix<Grid, Tile>(mats + static_cast<int64_t>(blockIdx.x) * m * m, matrix, m);
  if (threadIdx.x < 2) norm.largest[threadIdx.x] = 0;
  __syncthreads();
  T tile[Tile][Tile];
  load_tile<Grid>(matrix, tile);
  add_rows(tile, norm);
  __syncthreads();
  add_largest(norm, 0);
  __syncthreads();
  if (halve) {
    residual_tile<Grid>(matrix, matrix, m, tile);  // I - W^2, symmetric
    add_rows(tile, norm);
    __syncthreads();
    for (int i = threadIdx.x; i < m; i += Grid * Grid) {
      // The diagonal of W^2 by itself, from row i.
      T diagonal = 0;
      for (int k = 0; k < m; ++k) {
        const T value = matrix[i * SmallMatrix<Grid, Tile>::kStride + k];
        diagonal += value * value;
      }
      const T others = abs_sum_of<Grid, Tile>(norm, i) - fabs(1 - diagonal);
      const T bound = newton_schulz::start_bound(diagonal, others);
      atomicMax(&norm.largest[1], bits_of(bound > 0 ? bound : T(0)));
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    limits[blockIdx.x] = of_bits(norm.largest[0]);
    limits[batch + blockIdx.x] = of_bits(norm.largest[1]);
  }
}

// The scales of matrices whose limits are `step` values apart: 1, or 0 if all share the limits.
template <class T>
__global__ void start_scale_kernel(const T* row_sums, const T* bounds, T* scales, int64_t batch,
                                   int64_t step, T factor) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < batch)
    scales[i] = newton_schulz::start_scale(row_sums[i * step], bounds[i * step], factor);
}

}  // namespace device
}  // namespace mmlaplace
