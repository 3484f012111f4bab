// The checks and sizes that the CPU and CUDA sources of pooled_landmarks share.
#pragma once

#include "../common/tensor.h"

#include "../common/rotary.h"
#include "pooled_landmarks.h"

namespace mmlaplace {

struct Map {
  int64_t batch_heads, heads, dims, height, width;
  Cells rows, columns;
  int64_t cells() const { return rows.count * columns.count; }
};

inline Map map_of(const Tensor& k, const OptionalTensor& rotary, int64_t height, int64_t width,
                  int64_t rows, int64_t columns, int64_t ratio) {
  const char* op = "pooled_landmarks";
  MMLAPLACE_CHECK(k.dim() == 4 && height >= 1 && width >= 1 && k.size(2) == height * width, op,
                  ": k must be (B, heads, N, d) with N = ", height, " * ", width, ", got ",
                  k.sizes());
  MMLAPLACE_CHECK(rows >= 1 && columns >= 1 && ratio >= 0, op, ": needs at least one cell, got ",
                  rows, " x ", columns, " and ratio ", ratio);
  if (ratio > 0) rows = ceil_div(height, ratio), columns = ceil_div(width, ratio);
  check_rotary(op, rotary, k);
  return {k.size(0) * k.size(1),  k.size(1), k.size(3), height, width, {height, rows, ratio},
          {width, columns, ratio}};
}

inline void check_gradient(const Tensor& grad, const Map& map) {
  MMLAPLACE_CHECK(grad.dim() == 4 && grad.size(0) * grad.size(1) == map.batch_heads &&
                      grad.size(2) == map.cells() && grad.size(3) == map.dims,
                  "pooled_landmarks: the gradient must be (B, heads, ", map.cells(), ", ", map.dims,
                  "), got ", grad.sizes());
  check_floating("pooled_landmarks", "the gradient", grad);
}

}  // namespace mmlaplace
