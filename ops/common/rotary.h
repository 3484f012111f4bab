// Rotary positions as tensors: the check that CPU and CUDA sources share, and what a CPU reads.
#pragma once

#include "tensor.h"

#include "cpu/rotation.h"

namespace mmlaplace {

inline void check_rotary(const char* op, const OptionalTensor& rotary, const Tensor& tokens) {
  if (!rotary.has_value()) return;
  const int64_t count = tokens.size(2), dims = tokens.size(3);
  MMLAPLACE_CHECK(rotary->dim() == 3 && rotary->size(0) == 2 && 2 * rotary->size(1) <= dims &&
                      rotary->size(2) == count && rotary->device() == tokens.device(),
                  op, ": rotary must be (2, pairs, N) with 2 * pairs <= ", dims, " and N = ", count,
                  " on ", tokens.device(), ", got ", rotary->sizes(), " on ", rotary->device());
  check_floating(op, "rotary", *rotary);
}

// Whether pairs are channels 2 c and 2 c + 1, or else c and c + pairs.
inline bool is_adjacent(const char* op, StringView form) {
  MMLAPLACE_CHECK(form == "half" || form == "pairs", op,
                  ": rotary_form must be half or pairs, got ", form);
  return form == "pairs";
}

// Contiguous, in the type of the sums.
template <class T>
Tensor wide(const Tensor& tensor) {
  return tensor.to(type_of<T>()).contiguous();
}
template <class T>
Tensor wide(const OptionalTensor& tensor) {
  return tensor.has_value() ? wide<T>(*tensor) : Tensor();
}

// `table` (2, pairs, N) is contiguous, or undefined.
template <class T>
Rotation<T> rotation_of(const Tensor& table, bool adjacent) {
  if (!table.defined()) return {};
  return {table.data_ptr<T>(), table.size(1), table.size(2), adjacent};
}

}  // namespace mmlaplace
