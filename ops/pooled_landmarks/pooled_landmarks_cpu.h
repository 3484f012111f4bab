// The means of cells on a CPU, without ATen, so that other hosts than PyTorch have them too. A
// source includes it after kernels that have token_rows.h.
#pragma once

#include <algorithm>

#include "../common/cpu/arrays.h"
#include "../common/cpu/rotation.h"
#include "pooled_landmarks.h"

namespace mmlaplace {
namespace pooled {

// The values of a tile, whose channels are whole vectors.
template <class T>
int64_t tile_size(const Map& map) {
  const int64_t lanes = vector_bytes() / static_cast<int64_t>(sizeof(T));
  return ceil_div(map.dims, lanes) * lanes * kTile;
}

// Calls f(first token, count, first column) for the tiles of a row of the map.
template <class F>
void for_tiles(const Map& map, int64_t y, const F& f) {
  for (int64_t x = 0; x < map.width; x += kTile) {
    f(y * map.width + x, std::min(kTile, map.width - x), x);
  }
}

// Adds a tile of tokens to the sums of their columns, (dims, width).
template <class T>
void add_tile(const T* __restrict tile, int64_t dims, int64_t count, int64_t width,
              T* __restrict sums) {
  for (int64_t c = 0; c < dims; ++c) {
    for (int64_t t = 0; t < count; ++t) sums[c * width + t] += tile[c * kTile + t];
  }
}

// The means of the cells (B, heads, cells, d), of tokens that are turned first.
template <class T, class S>
void pool(const Map& map, const View<const S>& k, const Rotation<T>& rotation, T* out) {
  const int64_t dims = map.dims, width = map.width;
  host::parallel_for(map.batch_heads * map.rows.count, 1, [&](int64_t begin, int64_t end) {
    // The sums of the columns of a row of cells, and two tiles.
    Arrays<T> memory({tile_size<T>(map), tile_size<T>(map), dims * width}, /*zero=*/false);
    T *const tile = memory.take(tile_size<T>(map)), *const scratch = memory.take(tile_size<T>(map));
    T* const sums = memory.take(dims * width);
    for (int64_t index = begin; index < end; ++index) {
      const int64_t head = index / map.rows.count, row = index % map.rows.count;
      const int64_t top = map.rows.begin(row), bottom = map.rows.end(row);
      std::fill(sums, sums + dims * width, T(0));
      for (int64_t y = top; y < bottom; ++y) {
        for_tiles(map, y, [&](int64_t first, int64_t count, int64_t x) {
          MMLAPLACE_FOR_CPU(load_rows(k.slice(head), first, count, dims, rotation, scratch, tile));
          add_tile(tile, dims, count, width, sums + x);
        });
      }
      for (int64_t column = 0; column < map.columns.count; ++column) {
        const int64_t left = map.columns.begin(column), right = map.columns.end(column);
        const T share = T(1) / ((bottom - top) * (right - left));
        T* to = out + ((head * map.rows.count + row) * map.columns.count + column) * dims;
        for (int64_t c = 0; c < dims; ++c) {
          T sum = 0;
          for (int64_t x = left; x < right; ++x) sum += sums[c * width + x];
          to[c] = sum * share;
        }
      }
    }
  });
}

}  // namespace pooled
}  // namespace mmlaplace
