// The smallest sum of weights, for CPUs and GPUs.
#pragma once

namespace mmlaplace {
namespace normalized_nystrom {

// Where all kernels are zero, one over the smallest sum must leave room for gradients: the smallest
// number of fp32 would make them infinite.
constexpr double kTiny = 1e-30;

}  // namespace normalized_nystrom
}  // namespace mmlaplace
