// What the CPU and CUDA sources of newton_schulz_inverse share.
//
//   P = mat + ridge I,   X_0 = I / |P|_inf,   R = I - P X,   X <- X + X R
//
// This product order decides the accuracy, see mmlaplace/ops/spd_inverse.py.
#pragma once

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <limits>

#include "stopping.h"

namespace mmlaplace {
namespace newton_schulz {

inline void check(const at::Tensor& mat, int64_t num_iters) {
  TORCH_CHECK(mat.dim() >= 2 && mat.size(-1) == mat.size(-2) && mat.size(-1) > 0,
              "newton_schulz_inverse: mat must be (..., m, m), got shape ", mat.sizes());
  TORCH_CHECK(num_iters >= 1, "newton_schulz_inverse: num_iters must be at least 1, got ", num_iters);
}

// mat (..., m, m) as contiguous fp32 or fp64 (batch, m, m).
inline at::Tensor flatten(const at::Tensor& mat) {
  const int64_t m = mat.size(-1);
  return mat.to(at::toOpMathType(mat.scalar_type())).reshape({mat.numel() / (m * m), m, m}).contiguous();
}

// The iteration by batched matrix products, for matrices too large for the kernels. All matrices
// take the steps of the slowest; each stops changing when it is done.
inline at::Tensor by_matmul(const at::Tensor& mat, int64_t num_iters, double ridge) {
  at::NoTF32Guard no_tf32;  // ten bits of mantissa are no inverse
  const at::Tensor identity = at::eye(mat.size(-1), mat.options());
  const at::Tensor ridged = mat + ridge * identity;
  const double epsilon = mat.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                          : std::numeric_limits<float>::epsilon();
  at::Tensor inverse = identity / ridged.abs().sum(-1).amax(-1).view({-1, 1, 1});
  at::Tensor active = at::ones({mat.size(0), 1, 1}, mat.options().dtype(at::kBool));
  at::Tensor previous = at::full({mat.size(0), 1, 1}, std::numeric_limits<double>::infinity(), mat.options());
  for (int64_t step = 0; step < num_iters; ++step) {
    const at::Tensor residual = identity - at::bmm(ridged, inverse);
    inverse = at::where(active, inverse + at::bmm(inverse, residual), inverse);
    const at::Tensor norm = residual.abs().sum(-1).amax(-1).view({-1, 1, 1});
    active = active.logical_and(
        (norm.square().le(epsilon)).logical_or(norm.lt(0.25).logical_and(norm.gt(0.5 * previous))).logical_not());
    previous = norm;
    // Asking makes a GPU wait, so not at every step.
    if (step % 4 == 3 && !active.any().item<bool>()) break;
  }
  return inverse;
}

}  // namespace newton_schulz
}  // namespace mmlaplace
