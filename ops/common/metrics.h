// The metrics: what tells one kernel of differences from another.
//
//   K = exp(exponent * sum_c accumulate(q_c - k_c)),   dK/dq_c = derivative * slope(K, q_c - k_c)
//
// The factors, which are numbers, are here. The functions `accumulate` and `slope` are in
// metric_functions.h: they must be compiled once per instruction set, and this file only once.
#pragma once

#include <cmath>
#include <limits>

namespace mmlaplace {

// Below `smallest()`, a bandwidth makes the exponent or the derivative infinite in fp32.

// exp(-|q - k|_1 / bandwidth)
struct Laplacian {
  static constexpr const char* name = "mmlaplace::laplacian_kernel";
  static constexpr const char* backward_name = "mmlaplace::_laplacian_kernel_backward";
  static double smallest() { return 1 / (std::log(2.0) * std::numeric_limits<float>::max()); }
  static double exponent(double bandwidth) { return -1 / bandwidth; }
  static double derivative(double bandwidth) { return -1 / bandwidth; }
};

// exp(-|q - k|_2^2 / (2 bandwidth^2))
struct Gaussian {
  static constexpr const char* name = "mmlaplace::gaussian_kernel";
  static constexpr const char* backward_name = "mmlaplace::_gaussian_kernel_backward";
  static double smallest() { return 1 / std::sqrt(double{std::numeric_limits<float>::max()}); }
  static double exponent(double bandwidth) { return -0.5 / (bandwidth * bandwidth); }
  static double derivative(double bandwidth) { return -1 / (bandwidth * bandwidth); }
};

}  // namespace mmlaplace
