// When the Newton–Schulz iteration ends. The rule is the same on every device.
#pragma once

#include "../common/strided.h"

namespace mmlaplace {
namespace newton_schulz {

// Whether the step whose residual R had this row-sum norm is the last. A step squares the norm. It
// is the last if the square is at most epsilon, or if rounding has kept the norm from falling.
template <class T>
MMLAPLACE_HOST_DEVICE inline bool is_last(T norm, T previous, T epsilon) {
  return norm * norm <= epsilon || (norm < T(0.25) && norm > T(0.5) * previous);
}

}  // namespace newton_schulz
}  // namespace mmlaplace
