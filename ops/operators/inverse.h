// The exact inverse, for operators whose kernels are in other sources.
#pragma once

#include <cstdint>

namespace mmlaplace {
namespace operators {

// (mat + ridge I)^-1 of `count` contiguous matrices (m, m).
void invert(const float* mats, int64_t count, int64_t m, double ridge, float* out);

}  // namespace operators
}  // namespace mmlaplace
