// GPU kernel of the inverse that landmark_attention needs, (k(L, L) + ridge I)^-1 of a head's
// landmarks L. A block of two warps has a head, and the matrix is in its registers alone.
//
// This is device code alone, without ATen, so that tests can also run it on a CPU
// (tests/ops/native).
#pragma once

#include "../cholesky_inverse/cholesky_inverse_device.cuh"
#include "nystrom_attention_device.cuh"

namespace mmlaplace {
namespace nystrom {
namespace device {

template <class T>
struct LandmarkInverse {
  const T* landmarks;  // (batch_heads, m, d)
  int m, d;
  T exponent, ridge, infinity, nan;
  T* inverse;  // (batch_heads, m, m)
  // As of prepare_kernel.
  T* marks;
  int64_t tickets_of_head;
  int* tickets;
};

template <class Metric, int Tile, class T>
__global__ void __launch_bounds__(mmlaplace::device::kCholeskyThreads)
    landmark_inverse_kernel(LandmarkInverse<T> of) {
  constexpr int Grid = mmlaplace::device::kCholeskyGrid;
  constexpr int kThreads = mmlaplace::device::kCholeskyThreads;
  MMLAPLACE_SHARED_MEMORY(memory);
  const int row = threadIdx.x / Grid, column = threadIdx.x % Grid, m = of.m;
  const int wide = static_cast<int>(padded_marks(m));
  const int size = wide * static_cast<int>(padded_channels(of.d));
  const int64_t head = blockIdx.x;
  const T* landmarks = of.landmarks + head * m * of.d;
  T* marks = of.marks + head * size;
  for (int i = threadIdx.x; i < size; i += kThreads) {
    const int a = i % wide, c = i / wide;
    marks[i] = a < m && c < of.d ? landmarks[a * of.d + c] : T(0);
  }
  for (int64_t i = threadIdx.x; i < of.tickets_of_head; i += kThreads) {
    of.tickets[head * of.tickets_of_head + i] = 0;
  }
  __syncthreads();
  T tile[Tile][Tile] = {};
#pragma unroll 1
  for (int c = 0; c < of.d; ++c) {
    T left[Tile], right[Tile];
#pragma unroll
    for (int i = 0; i < Tile; ++i) {  // beyond the end, the last again
      const int r = row + Grid * i, other = column + Grid * i;
      left[i] = marks[c * wide + (r < wide ? r : wide - 1)];
      right[i] = marks[c * wide + (other < wide ? other : wide - 1)];
    }
#pragma unroll
    for (int i = 0; i < Tile; ++i) {
#pragma unroll
      for (int j = 0; j < Tile; ++j) {
        tile[i][j] = accumulate(Metric{}, tile[i][j], left[i] - right[j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Tile; ++i) {
#pragma unroll
    for (int j = 0; j < Tile; ++j) {
      const int r = row + Grid * i, c = column + Grid * j;
      tile[i][j] = r < m && c < m ? exp2(tile[i][j] * of.exponent) : T(0);
      if (r == c) tile[i][j] += of.ridge;
    }
  }
  mmlaplace::device::invert_tile(tile, reinterpret_cast<T*>(memory), m, of.infinity, of.nan);
  mmlaplace::device::write_tile<Grid>(of.inverse + head * m * m, m, tile);
}

}  // namespace device
}  // namespace nystrom
}  // namespace mmlaplace
