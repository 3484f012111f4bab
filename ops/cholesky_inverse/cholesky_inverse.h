// What the CPU and CUDA sources of cholesky_inverse share.
//
// The kernels sweep the matrix with each of its rows in turn (Gauss–Jordan steps without pivoting).
// Sweep k takes p, row k with p_k = -1, and the pivot d that was in its place. Where row and column
// k were is 0, and then
//
//   A <- A - p p^T / d
//
// After all of them A is -(A^-1). The pivots are the squares of the diagonal of Cholesky's factor.
// So all of them are positive and finite if and only if the factorisation exists. Otherwise the
// inverse is NaN.
#pragma once

#include "../common/matrices.h"

namespace mmlaplace {
namespace cholesky {

inline void check(const Tensor& mat, double ridge) {
  check_matrices("cholesky_inverse", mat);
  check_not_negative("cholesky_inverse", "ridge", ridge);
}

}  // namespace cholesky
}  // namespace mmlaplace
