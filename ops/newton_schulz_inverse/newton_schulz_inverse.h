// What the CPU and CUDA sources of newton_schulz_inverse share.
//
//   P = mat + ridge I,   X_0 = I / |P|_inf,   R = I - P X,   X <- X + X R
//
// The order of the products decides the accuracy, see mmlaplace/ops/inverse.py.
#pragma once

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <limits>

#include "newton_schulz_inverse_stopping.h"

namespace mmlaplace {
namespace newton_schulz {

inline void check(const at::Tensor& mat, int64_t num_iters) {
  TORCH_CHECK(mat.dim() >= 2 && mat.size(-1) == mat.size(-2) && mat.size(-1) > 0,
              "newton_schulz_inverse: mat must be (..., m, m), got shape ", mat.sizes());
  TORCH_CHECK(num_iters >= 1, "newton_schulz_inverse: num_iters must be at least 1, got ",
              num_iters);
}

// The matrices (..., m, m) as contiguous fp32 or fp64 (batch, m, m).
inline at::Tensor flatten(const at::Tensor& mat) {
  const int64_t m = mat.size(-1);
  return mat.to(at::toOpMathType(mat.scalar_type()))
      .reshape({mat.numel() / (m * m), m, m})
      .contiguous();
}

// The iteration by batched matrix products, for matrices that are too large for the kernels. On a
// CPU all matrices take as many steps as the slowest, on a GPU all take num_iters. Further steps
// leave a converged inverse as it is.
inline at::Tensor by_matmul(const at::Tensor& mats, int64_t num_iters, double ridge) {
  at::NoTF32Guard no_tf32;  // ten bits of mantissa are not enough for an inverse
  const at::Tensor identity = at::eye(mats.size(-1), mats.options());
  const at::Tensor ridged = mats + ridge * identity;
  const double epsilon = mats.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                           : std::numeric_limits<float>::epsilon();
  const auto norms = [](const at::Tensor& matrices) { return matrices.abs().sum(-1).amax(-1); };
  at::Tensor inverse = identity / norms(ridged).view({-1, 1, 1});
  at::Tensor previous =
      at::full({mats.size(0)}, std::numeric_limits<double>::infinity(), mats.options());
  for (int64_t step = 0; step < num_iters; ++step) {
    const at::Tensor residual = at::baddbmm(identity.unsqueeze(0), ridged, inverse, 1, -1);
    inverse = at::baddbmm(inverse, inverse, residual);
    if (mats.is_cuda()) continue;  // asking whether to stop would make the host wait
    const at::Tensor norm = norms(residual);
    if (step % 4 == 3) {  // is_last of newton_schulz_inverse_stopping.h, for all matrices
      const at::Tensor last =
          norm.square().le(epsilon).logical_or(norm.lt(0.25).logical_and(norm.gt(0.5 * previous)));
      if (last.all().item<bool>()) break;
    }
    previous = norm;
  }
  return inverse;
}

}  // namespace newton_schulz
}  // namespace mmlaplace
