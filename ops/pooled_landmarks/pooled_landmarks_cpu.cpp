#include "../common/tensor.h"

#include <algorithm>
#include <type_traits>

#include "../common/cpu/arrays.h"
#include "../common/pairwise.h"
#include "pooled_landmarks_map.h"

#define MMLAPLACE_KERNELS "token_rows.h"
#include "../common/cpu/cpu_dispatch.h"

namespace mmlaplace {
namespace {

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

template <class T, class S>
void pool(const Map& map, const Tensor& k, const Rotation<T>& rotation, T* out) {
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
          MMLAPLACE_FOR_CPU(
              load_rows(slice<const S>(k, head), first, count, dims, rotation, scratch, tile));
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

template <class T, class S>
void spread(const Map& map, const Tensor& grad, const Rotation<T>& rotation, S* out) {
  const int64_t dims = map.dims, width = map.width, cells = map.cells();
  const T* grads = grad.data_ptr<T>();
  host::parallel_for(map.batch_heads * map.height, 16, [&](int64_t begin, int64_t end) {
    Arrays<T> memory({dims * width, tile_size<T>(map), tile_size<T>(map)});
    T* const sums = memory.take(dims * width);
    T *const tile = memory.take(tile_size<T>(map)), *const scratch = memory.take(tile_size<T>(map));
    for (int64_t index = begin; index < end; ++index) {
      const int64_t head = index / map.height, y = index % map.height;
      std::fill(sums, sums + dims * width, T(0));
      for (int64_t row = 0; row < map.rows.count; ++row) {
        const int64_t top = map.rows.begin(row), bottom = map.rows.end(row);
        if (y < top || y >= bottom) continue;
        for (int64_t column = 0; column < map.columns.count; ++column) {
          const int64_t left = map.columns.begin(column), right = map.columns.end(column);
          const T share = T(1) / ((bottom - top) * (right - left));
          const T* from = grads + (head * cells + row * map.columns.count + column) * dims;
          for (int64_t c = 0; c < dims; ++c) {
            const T value = from[c] * share;
            for (int64_t x = left; x < right; ++x) sums[c * width + x] += value;
          }
        }
      }
      const int64_t stride = map.heads * dims;
      S* to = out + (head / map.heads * map.height * width * map.heads + head % map.heads) * dims;
      for_tiles(map, y, [&](int64_t first, int64_t count, int64_t x) {
        for (int64_t c = 0; c < dims; ++c) {
          std::copy_n(sums + c * width + x, count, tile + c * kTile);
        }
        MMLAPLACE_FOR_CPU(
            store_rows(tile, first, count, dims, rotation, scratch, to + first * stride, stride));
      });
    }
  });
}

Tensor forward(const Tensor& k, const OptionalTensor& rotary, StringView form, int64_t height,
               int64_t width, OptionalInt rows, OptionalInt columns, OptionalInt ratio) {
  const bool adjacent = is_adjacent("pooled_landmarks", form);
  const Map map = map_of(k, rotary, height, width, rows, columns, ratio);
  Tensor out;
  MMLAPLACE_DISPATCH(k.scalar_type(), "pooled_landmarks", [&] {
    using T = Wide<scalar_t>;
    out = empty({k.size(0), k.size(1), map.cells(), map.dims}, k, type_of<T>());
    const Tensor table = wide<T>(rotary);
    pool<T, scalar_t>(map, k, rotation_of<T>(table, adjacent), out.data_ptr<T>());
  });
  return out;
}

Tensor backward(const Tensor& grad, const Tensor& k, const OptionalTensor& rotary, StringView form,
                int64_t height, int64_t width, OptionalInt rows, OptionalInt columns,
                OptionalInt ratio) {
  const bool adjacent = is_adjacent("pooled_landmarks", form);
  const Map map = map_of(k, rotary, height, width, rows, columns, ratio);
  check_gradient(grad, k, map);
  const Tensor out = empty({k.size(0), k.size(2), map.heads, map.dims}, k);
  MMLAPLACE_DISPATCH(k.scalar_type(), "pooled_landmarks", [&] {
    using T = Wide<scalar_t>;
    const Tensor table = wide<T>(rotary);
    spread<T, scalar_t>(map, wide<T>(grad), rotation_of<T>(table, adjacent),
                        out.data_ptr<scalar_t>());
  });
  return out.transpose(1, 2);
}

}  // namespace
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("pooled_landmarks", MMLAPLACE_KERNEL(mmlaplace::forward));
  library.impl("_pooled_landmarks_backward", MMLAPLACE_KERNEL(mmlaplace::backward));
}
