// What the inverses ask of their matrices (..., m, m).
#pragma once

#include "tensor.h"

namespace mmlaplace {

inline void check_matrices(const char* op, const Tensor& mat) {
  MMLAPLACE_CHECK(mat.dim() >= 2 && mat.size(-1) == mat.size(-2) && mat.size(-1) > 0, op,
                  ": mat must be (..., m, m), got shape ", mat.sizes());
  check_floating(op, "mat", mat);
}

// The kernels are for small matrices. For others the Python functions take their references, which
// call a library.
inline void check_rows(const char* op, int64_t rows, int64_t most, const char* device) {
  MMLAPLACE_CHECK(rows <= most, op, ": on a ", device, " mat can have at most ", most,
                  " rows, got ", rows, "; backend='reference' has no limit");
}

// Up to here the kernels for a CPU are at least about as fast as BLAS and LAPACK.
constexpr int64_t kMostRowsOnCpu = 512;

// As contiguous fp32 or fp64 (batch, m, m).
inline Tensor flat_matrices(const Tensor& mat) {
  const int64_t m = mat.size(-1);
  return mat.to(wide(mat.scalar_type())).reshape({mat.numel() / (m * m), m, m}).contiguous();
}

}  // namespace mmlaplace
