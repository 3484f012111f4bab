#include "../common/tensor.h"

#include <type_traits>

#include "../common/pairwise.h"
#include "pooled_landmarks_map.h"

#define MMLAPLACE_KERNELS "token_rows.h"
#include "../common/cpu/cpu_dispatch.h"
#include "pooled_landmarks_cpu.h"

namespace mmlaplace {
namespace {

using pooled::for_tiles;
using pooled::tile_size;

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
    pooled::pool<T, scalar_t>(map, view<const scalar_t>(k), rotation_of<T>(table, adjacent),
                              out.data_ptr<T>());
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
