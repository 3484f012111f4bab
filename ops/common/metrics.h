// What tells one kernel of differences from another:
//
//   K = exp(exponent * sum_c accumulate(q_c - k_c)),   dK/dq_c = derivative * slope(K, q_c - k_c)
//
// with accumulate and slope in metric_functions.inc.
#pragma once

namespace mmlaplace {

// exp(-|q - k|_1 / scale)
struct Laplacian {
  static constexpr const char* name = "mmlaplace::laplacian_kernel";
  static constexpr const char* backward_name = "mmlaplace::_laplacian_kernel_backward";
  static double exponent(double scale) { return -1 / scale; }
  static double derivative(double scale) { return -1 / scale; }
};

// exp(-|q - k|_2^2 / (2 scale^2))
struct Gaussian {
  static constexpr const char* name = "mmlaplace::gaussian_kernel";
  static constexpr const char* backward_name = "mmlaplace::_gaussian_kernel_backward";
  static double exponent(double scale) { return -0.5 / (scale * scale); }
  static double derivative(double scale) { return -1 / (scale * scale); }
};

}  // namespace mmlaplace
