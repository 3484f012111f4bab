// What the CPU and CUDA sources of newton_schulz_inverse share.
//
//   P = mat + ridge I,   X_0 = I / |P|_inf or alpha P,   R = I - P X,   X <- X + X R
//
// The order of the products decides the accuracy, see mmlaplace/ops/newton_schulz_inverse.py.
#pragma once

#include "../common/matrices.h"

#include "newton_schulz_inverse_rules.h"

namespace mmlaplace {
namespace newton_schulz {

inline void check(const Tensor& mat, int64_t num_iters, double ridge,
                  const OptionalTensor& start_scale) {
  const char* op = "newton_schulz_inverse";
  check_matrices(op, mat);
  MMLAPLACE_CHECK(num_iters >= 1, op, ": num_iters must be at least 1, got ", num_iters);
  check_not_negative(op, "ridge", ridge);
  if (!start_scale.has_value()) return;
  const auto leading = mat.sizes().slice(0, mat.dim() - 2);
  MMLAPLACE_CHECK(start_scale->sizes() == leading && start_scale->device() == mat.device(), op,
                  ": start_scale must be ", leading, " on ", mat.device(),
                  ", one for each matrix, got ", start_scale->sizes(), " on ",
                  start_scale->device());
  check_floating(op, "start_scale", *start_scale);
}

inline void check_start(const Tensor& mat, double factor) {
  check_matrices("newton_start_scale", mat);
  check_positive("newton_start_scale", "factor", factor);
}

// The scales as contiguous (batch,) of the type of the flat matrices. Undefined if there are none.
inline Tensor flat_scales(const OptionalTensor& start_scale, const Tensor& mats) {
  if (!start_scale.has_value()) return {};
  return start_scale->to(mats.scalar_type()).reshape({-1}).contiguous();
}

}  // namespace newton_schulz
}  // namespace mmlaplace
