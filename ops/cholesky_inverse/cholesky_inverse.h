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

#include "../common/tensor.h"

#include <limits>
#include <tuple>

namespace mmlaplace {
namespace cholesky {

inline void check(const Tensor& mat) {
  MMLAPLACE_CHECK(mat.dim() >= 2 && mat.size(-1) == mat.size(-2) && mat.size(-1) > 0,
                  "cholesky_inverse: mat must be (..., m, m), got shape ", mat.sizes());
  check_floating("cholesky_inverse", "mat", mat);
}

// The matrices (..., m, m) as contiguous fp32 or fp64 (batch, m, m).
inline Tensor flatten(const Tensor& mat) {
  const int64_t m = mat.size(-1);
  return mat.to(wide(mat.scalar_type())).reshape({mat.numel() / (m * m), m, m}).contiguous();
}

// The inverse by LAPACK or cuSOLVER, for matrices that are too large for the kernels.
inline Tensor by_factor(const Tensor& mats, double ridge) {
  NoTF32Guard no_tf32;  // ten bits of mantissa are not enough for an inverse
  const Tensor identity = eye(mats.size(-1), mats);
  const Tensor symmetric = mean_of(mats, mats.transpose(-2, -1)) + ridge * identity;
  const auto [factor, info] = linalg_cholesky_ex(symmetric);
  // An infinity on the diagonal is no failure for LAPACK.
  const Tensor finite = factor.diagonal(0, -2, -1).sum(-1).isfinite();
  const Tensor failed = info.ne(0).logical_or(finite.logical_not());
  const Tensor root = linalg_solve_triangular(factor, identity, /*upper=*/false);
  return linalg_solve_triangular(factor.transpose(-2, -1), root, /*upper=*/true)
      .masked_fill_(failed.view({-1, 1, 1}), std::numeric_limits<double>::quiet_NaN())
      .contiguous();  // as compiled graphs expect; LAPACK's results are transposed
}

}  // namespace cholesky
}  // namespace mmlaplace
