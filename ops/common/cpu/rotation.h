// Rotary positions on a CPU, and the length of the tiles of tokens that token_rows.h fills.
#pragma once

#include <ATen/core/Tensor.h>

#include "../strided.h"

namespace mmlaplace {

// Tokens of a tile.
constexpr int64_t kTile = 128;

// The angles by which pairs of channels turn: table[0][pair][token] has the cosines, table[1] the
// sines. A pair is the channels c and c + pairs or, if adjacent, 2 c and 2 c + 1.
template <class T>
struct Rotation {
  const T* table = nullptr;
  int64_t pairs = 0, tokens = 0;
  bool adjacent = false;

  Rotation() = default;
  // `table` (2, pairs, N) is contiguous, or undefined.
  Rotation(const at::Tensor& table, bool adjacent) : adjacent(adjacent) {
    if (!table.defined()) return;
    this->table = table.data_ptr<T>(), pairs = table.size(1), tokens = table.size(2);
  }
};

inline void check_rotary(const char* op, const c10::optional<at::Tensor>& rotary, int64_t dims,
                         int64_t tokens) {
  if (!rotary.has_value()) return;
  TORCH_CHECK(rotary->dim() == 3 && rotary->size(0) == 2 && 2 * rotary->size(1) <= dims &&
                  rotary->size(2) == tokens,
              op, ": rotary must be (2, pairs, N) with 2 * pairs <= ", dims, " and N = ", tokens,
              ", got ", rotary->sizes());
}

// Contiguous, in the type of the sums.
template <class T>
at::Tensor wide(const at::Tensor& tensor) {
  return tensor.to(c10::CppTypeToScalarType<T>::value).contiguous();
}
template <class T>
at::Tensor wide(const c10::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? wide<T>(*tensor) : at::Tensor();
}

}  // namespace mmlaplace
