// The cells of pooled_landmarks, for all devices.
#pragma once

#include "../common/strided.h"

namespace mmlaplace {

// Divides `size` tokens into `count` cells. With a ratio, cells are so long and only the last is
// shorter. Without, cell i begins at floor(i size / count) and ends at ceil((i + 1) size / count).
struct Cells {
  int64_t size, count, ratio;

  MMLAPLACE_HOST_DEVICE int64_t begin(int64_t cell) const {
    return ratio > 0 ? cell * ratio : cell * size / count;
  }
  MMLAPLACE_HOST_DEVICE int64_t end(int64_t cell) const {
    if (ratio == 0) return ceil_div((cell + 1) * size, count);
    return (cell + 1) * ratio < size ? (cell + 1) * ratio : size;
  }
  // The cells that have a token are those from first_with() to last_with().
  MMLAPLACE_HOST_DEVICE int64_t first_with(int64_t token) const {
    return ratio > 0 ? token / ratio : token * count / size;
  }
  MMLAPLACE_HOST_DEVICE int64_t last_with(int64_t token) const {
    return ratio > 0 ? token / ratio : ceil_div((token + 1) * count, size) - 1;
  }
};

// A map of tokens of all heads, and its cells.
struct Map {
  int64_t batch_heads, heads, dims, height, width;
  Cells rows, columns;
  int64_t cells() const { return rows.count * columns.count; }
};

}  // namespace mmlaplace
