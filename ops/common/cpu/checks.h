// What ops that autograd does not see ask of their inputs.
#pragma once

#include "../tensor.h"

namespace mmlaplace {

inline void check_fp32(const char* op, const char* name, const Tensor& tensor, IntArrayRef sizes) {
  MMLAPLACE_CHECK(tensor.sizes() == sizes && tensor.scalar_type() == ScalarType::Float, op, ": ",
                  name, " must be fp32 of shape ", sizes, ", got ", tensor.scalar_type(),
                  " of shape ", tensor.sizes());
}

inline void check_contiguous_fp32(const char* op, const char* name, const Tensor& tensor,
                                  IntArrayRef sizes) {
  check_fp32(op, name, tensor, sizes);
  MMLAPLACE_CHECK(tensor.is_contiguous(), op, ": ", name, " must be contiguous, got strides ",
                  tensor.strides());
}

}  // namespace mmlaplace
