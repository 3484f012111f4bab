// Where the Newton–Schulz iteration starts and when it ends. The rules are the same on every
// device.
#pragma once

#include "../common/strided.h"

namespace mmlaplace {
namespace newton_schulz {

// Whether the step whose residual R had this row-sum norm is the last. A step squares the norm. It
// is the last if the square is at most epsilon, or if rounding has kept the norm from falling.
//
// A direction of P that is not yet in X has a residual of about 1. So no step is the last before
// all directions are in X, and the iteration for a singular P takes all its steps.
template <class T>
MMLAPLACE_HOST_DEVICE inline bool is_last(T norm, T previous, T epsilon) {
  return norm * norm <= epsilon || (norm < T(0.25) && norm > T(0.5) * previous);
}

// An eigenvalue l of W with alpha l^2 = 2 is mapped to 0 by the first step, and never comes back.
constexpr double kMostAtStart = 1.999;

// SOFT's alpha = factor / r^2, r the largest row sum of W. SOFT++ halves it while
// |I - alpha W^2|_1 > 1.01, ten times at most. Here also while alpha |W^2|_1 > kMostAtStart.
//
// A column of W^2 has a diagonal entry s and a sum t of the absolute values of the others. Its norm
// in I - alpha W^2 is |1 - alpha s| + alpha t, which is the larger of 1 + alpha (t - s) and
// alpha (t + s) - 1. The second is at most 0.999 by the second condition. So both hold as long as
// alpha times this bound is at most 1:
template <class T>
MMLAPLACE_HOST_DEVICE inline T start_bound(T diagonal, T others) {
  const T falling = (others - diagonal) / T(0.01), rising = (others + diagonal) / T(kMostAtStart);
  return rising > falling ? rising : falling;
}

// The scale from the largest r and the largest bound. NaN if r is NaN.
template <class T>
MMLAPLACE_HOST_DEVICE inline T start_scale(T row_sum, T bound, T factor) {
  T scale = factor / (row_sum * row_sum);
  for (int i = 0; i < 10 && scale * bound > 1; ++i) scale /= 2;
  return scale;
}

}  // namespace newton_schulz
}  // namespace mmlaplace
