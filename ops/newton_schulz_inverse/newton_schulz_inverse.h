// What the CPU and CUDA sources of newton_schulz_inverse share.
//
//   P = mat + ridge I,   X_0 = I / |P|_inf or alpha P,   R = I - P X,   X <- X + X R
//
// The order of the products decides the accuracy, see mmlaplace/ops/newton_schulz_inverse.py.
#pragma once

#include "../common/tensor.h"

#include <limits>
#include <utility>

#include "newton_schulz_inverse_rules.h"

namespace mmlaplace {
namespace newton_schulz {

inline void check(const Tensor& mat) {
  MMLAPLACE_CHECK(mat.dim() >= 2 && mat.size(-1) == mat.size(-2) && mat.size(-1) > 0,
                  "newton_schulz_inverse: mat must be (..., m, m), got shape ", mat.sizes());
  check_floating("newton_schulz_inverse", "mat", mat);
}

inline void check(const Tensor& mat, int64_t num_iters, const OptionalTensor& start_scale) {
  check(mat);
  MMLAPLACE_CHECK(num_iters >= 1, "newton_schulz_inverse: num_iters must be at least 1, got ",
                  num_iters);
  if (!start_scale.has_value()) return;
  const auto leading = mat.sizes().slice(0, mat.dim() - 2);
  MMLAPLACE_CHECK(start_scale->sizes() == leading, "newton_schulz_inverse: start_scale must be ",
                  leading, ", one for each matrix, got ", start_scale->sizes());
}

// The matrices (..., m, m) as contiguous fp32 or fp64 (batch, m, m).
inline Tensor flatten(const Tensor& mat) {
  const int64_t m = mat.size(-1);
  return mat.to(wide(mat.scalar_type())).reshape({mat.numel() / (m * m), m, m}).contiguous();
}

// The scales as contiguous (batch,) of the type of the flat matrices. Undefined if there are none.
inline Tensor flatten_scales(const OptionalTensor& start_scale, const Tensor& mats) {
  if (!start_scale.has_value()) return {};
  return start_scale->to(mats.scalar_type()).reshape({-1}).contiguous();
}

// The iteration by batched matrix products, for matrices that are too large for the kernels. On a
// CPU all matrices take as many steps as the slowest, on a GPU all take num_iters. Further steps
// leave a converged inverse as it is.
inline Tensor by_matmul(const Tensor& mats, int64_t num_iters, double ridge, const Tensor& scales) {
  NoTF32Guard no_tf32;  // ten bits of mantissa are not enough for an inverse
  const Tensor identity = eye(mats.size(-1), mats);
  const Tensor ridged = mats + ridge * identity;
  const double epsilon = mats.scalar_type() == ScalarType::Double
                             ? std::numeric_limits<double>::epsilon()
                             : std::numeric_limits<float>::epsilon();
  const auto norms = [](const Tensor& matrices) { return matrices.abs().sum(-1).amax(-1); };
  Tensor inverse = scales.defined() ? scales.view({-1, 1, 1}) * ridged
                                    : identity / norms(ridged).view({-1, 1, 1});
  Tensor previous = full({mats.size(0)}, std::numeric_limits<double>::infinity(), mats);
  for (int64_t step = 0; step < num_iters; ++step) {
    const Tensor residual = baddbmm(identity.unsqueeze(0), ridged, inverse, 1, -1);
    inverse = baddbmm(inverse, inverse, residual);
    if (mats.is_cuda()) continue;  // asking whether to stop would make the host wait
    const Tensor norm = norms(residual);
    if (step % 4 == 3) {  // is_last of newton_schulz_inverse_rules.h, for all matrices
      const Tensor last =
          norm.square().le(epsilon).logical_or(norm.lt(0.25).logical_and(norm.gt(0.5 * previous)));
      if (all_true(last)) break;
    }
    previous = norm;
  }
  return inverse;
}

// What newton_schulz_inverse_rules.h asks of each of the matrices, by matrix products: (2, batch),
// the largest row sum and, if `halve`, the largest bound.
inline Tensor start_limits_by_matmul(const Tensor& mats, bool halve) {
  NoTF32Guard no_tf32;
  Tensor limits = zeros({2, mats.size(0)}, mats);
  limits[0].copy_(mats.sum(-1).amax(-1));
  if (!halve) return limits;
  const Tensor square = bmm(mats, mats), diagonal = square.diagonal(0, -2, -1);
  const Tensor others = square.abs().sum(-2) - diagonal.abs();
  limits[1].copy_(maximum((others - diagonal) / 0.01, (others + diagonal) / kMostAtStart).amax(-1));
  return limits;
}

}  // namespace newton_schulz
}  // namespace mmlaplace
