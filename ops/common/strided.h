// Strided tensors: index arithmetic that CPU and CUDA code share, in 64 bits and without ATen.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MMLAPLACE_HOST_DEVICE __host__ __device__
#else
#define MMLAPLACE_HOST_DEVICE
#endif

namespace mmlaplace {

MMLAPLACE_HOST_DEVICE inline int64_t ceil_div(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// The strides of a tensor (batch, heads, rows, columns), in elements.
struct Strides {
  int64_t batch, head, row, column;
};

// One (batch, head) slice of a tensor of four axes with any strides.
template <class T>
struct Slice {
  T* data;
  int64_t row_stride, column_stride;

  MMLAPLACE_HOST_DEVICE Slice(T* tensor, const Strides& strides, int64_t heads, int64_t batch_head)
      : data(tensor + batch_head / heads * strides.batch + batch_head % heads * strides.head),
        row_stride(strides.row),
        column_stride(strides.column) {}

  MMLAPLACE_HOST_DEVICE T* row(int64_t index) const { return data + index * row_stride; }

  MMLAPLACE_HOST_DEVICE T& at(int64_t row, int64_t column) const {
    return data[row * row_stride + column * column_stride];
  }

  // The slice without its first `first` rows.
  MMLAPLACE_HOST_DEVICE Slice from(int64_t first) const {
    Slice rest = *this;
    rest.data += first * row_stride;
    return rest;
  }
};

// A tensor (batch, heads, rows, columns) with any strides.
template <class T>
struct View {
  T* data;
  Strides strides;
  int64_t heads;

  Slice<T> slice(int64_t batch_head) const { return {data, strides, heads, batch_head}; }
};

}  // namespace mmlaplace
