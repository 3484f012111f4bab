// Matrices that a block of a GPU keeps in shared memory, and the elements of them that a thread
// has.
//
// This is device code alone, without ATen, so that tests can also run it on a CPU
// (tests/ops/native).
#pragma once

#include "../common/strided.h"

#ifndef MMLAPLACE_INLINE
#define MMLAPLACE_INLINE static __device__ __forceinline__
#endif
#ifndef MMLAPLACE_SHARED_MEMORY
#define MMLAPLACE_SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]
#endif

namespace mmlaplace {
namespace device {

// A block of Grid x Grid threads has a matrix of at most Grid * Tile rows, padded with zeros.
// Thread (row, column) has the elements (row + Grid i, column + Grid j). The stride in shared
// memory is odd. So threads of a warp read different banks along rows and along columns.
template <int Grid, int Tile>
struct SmallMatrix {
  static constexpr int kThreads = Grid * Grid, kSide = Grid * Tile, kStride = kSide + 1;
  static constexpr int kSize = kSide * kStride;
};

template <int Grid, int Tile, class T>
MMLAPLACE_INLINE void load_matrix(const T* from, T* to, int m) {
  using Matrix = SmallMatrix<Grid, Tile>;
  for (int i = threadIdx.x; i < Matrix::kSize; i += Matrix::kThreads) {
    const int row = i / Matrix::kStride, column = i % Matrix::kStride;
    to[i] = row < m && column < m ? from[row * m + column] : T(0);
  }
}

template <int Grid, int Tile, class T>
MMLAPLACE_INLINE void load_tile(const T* matrix, T (&tile)[Tile][Tile]) {
  const T* first = matrix + threadIdx.x / Grid * (Grid * Tile + 1) + threadIdx.x % Grid;
#pragma unroll
  for (int i = 0; i < Tile; ++i) {
#pragma unroll
    for (int j = 0; j < Tile; ++j) tile[i][j] = first[Grid * i * (Grid * Tile + 1) + Grid * j];
  }
}

template <int Grid, int Tile, class T>
MMLAPLACE_INLINE void store_tile(T* matrix, const T (&tile)[Tile][Tile]) {
  T* first = matrix + threadIdx.x / Grid * (Grid * Tile + 1) + threadIdx.x % Grid;
#pragma unroll
  for (int i = 0; i < Tile; ++i) {
#pragma unroll
    for (int j = 0; j < Tile; ++j) first[Grid * i * (Grid * Tile + 1) + Grid * j] = tile[i][j];
  }
}

// The tile to the matrix (m, m) in global memory.
template <int Grid, int Tile, class T>
MMLAPLACE_INLINE void write_tile(T* matrix, int m, const T (&tile)[Tile][Tile]) {
  const int row = threadIdx.x / Grid, column = threadIdx.x % Grid;
#pragma unroll
  for (int i = 0; i < Tile; ++i) {
#pragma unroll
    for (int j = 0; j < Tile; ++j) {
      if (row + Grid * i < m && column + Grid * j < m)
        matrix[(row + Grid * i) * m + column + Grid * j] = tile[i][j];
    }
  }
}

// tile += left right.
template <int Grid, int Tile, class T>
MMLAPLACE_INLINE void add_product(const T* left, const T* right, int m, T (&tile)[Tile][Tile]) {
  constexpr int stride = SmallMatrix<Grid, Tile>::kStride;
  left += threadIdx.x / Grid * stride;
  right += threadIdx.x % Grid;
#pragma unroll 2
  for (int k = 0; k < m; ++k) {
    T values[Tile];
#pragma unroll
    for (int j = 0; j < Tile; ++j) values[j] = right[k * stride + Grid * j];
#pragma unroll
    for (int i = 0; i < Tile; ++i) {
      const T factor = left[Grid * i * stride + k];
#pragma unroll
      for (int j = 0; j < Tile; ++j) tile[i][j] += factor * values[j];
    }
  }
}

// tile = I - left right.
template <int Grid, int Tile, class T>
MMLAPLACE_INLINE void residual_tile(const T* left, const T* right, int m, T (&tile)[Tile][Tile]) {
#pragma unroll
  for (int i = 0; i < Tile; ++i) {
#pragma unroll
    for (int j = 0; j < Tile; ++j) tile[i][j] = 0;
  }
  add_product<Grid>(left, right, m, tile);
  const int row = threadIdx.x / Grid, column = threadIdx.x % Grid;
#pragma unroll
  for (int i = 0; i < Tile; ++i) {
#pragma unroll
    for (int j = 0; j < Tile; ++j) tile[i][j] = -tile[i][j];
    if (row == column && row + Grid * i < m) tile[i][i] += 1;
  }
}

// The bits of a number that is not negative. They are ordered as the numbers, and those of NaN are
// above those of infinity.
MMLAPLACE_INLINE unsigned int bits_of(float value) { return __float_as_uint(value); }
MMLAPLACE_INLINE unsigned long long bits_of(double value) {
  return static_cast<unsigned long long>(__double_as_longlong(value));
}
MMLAPLACE_INLINE float of_bits(unsigned int bits) { return __uint_as_float(bits); }
MMLAPLACE_INLINE double of_bits(unsigned long long bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}
template <class T>
struct BitsOf;
template <>
struct BitsOf<float> {
  using type = unsigned int;
};
template <>
struct BitsOf<double> {
  using type = unsigned long long;
};

}  // namespace device
}  // namespace mmlaplace
