// The checks and sizes that the CPU and CUDA sources of pooled_landmarks share.
#pragma once

#include "../common/tensor.h"

#include <algorithm>
#include <limits>

#include "../common/rotary.h"
#include "pooled_landmarks.h"

namespace mmlaplace {

inline Map map_of(const Tensor& k, const OptionalTensor& rotary, int64_t height, int64_t width,
                  const OptionalInt& rows, const OptionalInt& columns, const OptionalInt& ratio) {
  const char* op = "pooled_landmarks";
  // Divisions, as the product of two numbers may be too large for one.
  MMLAPLACE_CHECK(k.dim() == 4 && height >= 1 && width >= 1 && k.size(2) % height == 0 &&
                      k.size(2) / height == width,
                  op, ": k must be (B, heads, N, d) with N = ", height, " * ", width, ", got ",
                  k.sizes());
  check_floating(op, "k", k);
  check_rotary(op, rotary, k);
  const int64_t batch_heads = k.size(0) * k.size(1), heads = k.size(1), dims = k.size(3);
  MMLAPLACE_CHECK(rows.has_value() != ratio.has_value() && rows.has_value() == columns.has_value(),
                  op, ": give rows and columns of cells or a ratio");
  if (ratio.has_value()) {
    MMLAPLACE_CHECK(*ratio >= 1, op, ": ratio must be positive, got ", *ratio);
    const int64_t side = std::min(*ratio, std::max(height, width));
    return {batch_heads,
            heads,
            dims,
            height,
            width,
            {height, ceil_div(height, side), side},
            {width, ceil_div(width, side), side}};
  }
  MMLAPLACE_CHECK(
      *rows >= 1 && *columns >= 1 && *rows <= std::numeric_limits<int32_t>::max() / *columns, op,
      ": needs between 1 and 2^31 - 1 cells, got ", *rows, " x ", *columns);
  return {batch_heads, heads, dims, height, width, {height, *rows, 0}, {width, *columns, 0}};
}

inline void check_gradient(const Tensor& grad, const Tensor& k, const Map& map) {
  MMLAPLACE_CHECK(grad.dim() == 4 && grad.size(0) == k.size(0) && grad.size(1) == k.size(1) &&
                      grad.size(2) == map.cells() && grad.size(3) == map.dims &&
                      grad.device() == k.device(),
                  "pooled_landmarks: the gradient must be (B, heads, ", map.cells(), ", ", map.dims,
                  ") on ", k.device(), ", got ", grad.sizes(), " on ", grad.device());
  check_floating("pooled_landmarks", "the gradient", grad);
}

}  // namespace mmlaplace
