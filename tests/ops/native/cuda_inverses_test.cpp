// Runs the device code of the inverses in ops/ on a CPU and compares it with the formulas in fp64.
// Prints what it checked; ends with status 1 at the first value that is off.
#include "cuda_on_cpu.h"

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>

using std::fabs;

template <class T>
void atomicMax(T* target, T value) {
  T old = __atomic_load_n(target, __ATOMIC_RELAXED);
  while (old < value && !__atomic_compare_exchange_n(target, &old, value, true, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
}

#include "../../../ops/cholesky_inverse/cholesky_inverse_device.cuh"
#include "../../../ops/newton_schulz_inverse/newton_schulz_inverse_device.cuh"

using namespace mmlaplace;
using Values = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
std::mt19937 generator(0);

[[noreturn]] void fail(const char* what, int m, double got, double wanted) {
  std::printf("%s, m = %d: got %.17g, wanted %.17g\n", what, m, got, wanted);
  std::exit(1);
}

void expect_at_most(const char* what, int m, double error, double bound) {
  if (!(error <= bound)) fail(what, m, error, bound);
}

// exp(-|x - y| / 4) of points in a plane, of which some coincide.
Values kernel_matrix(int m, double spread) {
  std::normal_distribution<double> normal;
  Values points(2 * m), mat(m * m);
  for (double& value : points) value = spread * std::round(normal(generator) * 8) / 8;
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < m; ++j)
      mat[i * m + j] = std::exp(-(std::abs(points[2 * i] - points[2 * j]) +
                                  std::abs(points[2 * i + 1] - points[2 * j + 1])) /
                                4);
  }
  return mat;
}

Values product(const Values& a, const Values& b, int m) {
  Values out(m * m);
  for (int i = 0; i < m; ++i) {
    for (int k = 0; k < m; ++k) {
      for (int j = 0; j < m; ++j) out[i * m + j] += a[i * m + k] * b[k * m + j];
    }
  }
  return out;
}

Values ridged(Values mat, int m, double ridge) {
  for (int i = 0; i < m; ++i) mat[i * m + i] += ridge;
  return mat;
}

Values identity(int m) { return ridged(Values(m * m), m, 1); }

double largest_difference(const Values& a, const Values& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN too
  }
  return largest;
}

template <class T>
std::vector<T> batch_of(const std::vector<Values>& mats) {
  std::vector<T> out;
  for (const Values& mat : mats) out.insert(out.end(), mat.begin(), mat.end());
  return out;
}

template <class T>
Values from_batch(const std::vector<T>& mats, int m, int index) {
  return Values(mats.begin() + index * m * m, mats.begin() + (index + 1) * m * m);
}

void expect_fits(int bytes) {
  if (bytes > static_cast<int>(sizeof(dynamic_shared_memory))) std::abort();
}

template <int Grid, int Tile>
void check_newton_schulz(int m) {
  using T = double;
  const double ridge = 1e-2, epsilon = std::numeric_limits<T>::epsilon();
  expect_fits(device::newton_schulz_bytes<Grid, Tile, T>());
  const auto run = [&](const std::vector<Values>& mats, const T* scales, int steps, double r) {
    const std::vector<T> in = batch_of<T>(mats);
    std::vector<T> out(in.size(), -1);
    launch(device::newton_schulz_kernel<Grid, Tile, T>, mats.size(), Grid * Grid, in.data(), scales,
           out.data(), m, steps, r, epsilon, kInfinity);
    return out;
  };
  const std::vector<Values> mats{kernel_matrix(m, 1), kernel_matrix(m, 0.1)};
  const std::vector<T> inverses = run(mats, nullptr, 40, ridge);
  for (int b = 0; b < 2; ++b) {
    const Values residual = product(ridged(mats[b], m, ridge), from_batch(inverses, m, b), m);
    // Coinciding points bring the condition to m / ridge; rounding is that times epsilon.
    expect_at_most("newton_schulz_inverse", m, largest_difference(residual, identity(m)),
                   100 * m / ridge * epsilon);
  }

  // From alpha P for a matrix of points that all coincide, which is singular: all steps are made.
  // Beside it one that needs a few.
  const std::vector<Values> others{Values(m * m, 1.0), identity(m)};
  const std::vector<T> scales{0.3 / m / m, 0.7};
  const std::vector<T> pseudo = run(others, scales.data(), 20, 0);
  for (int b = 0; b < 2; ++b) {
    Values wanted = others[b];
    for (double& value : wanted) value *= scales[b];
    for (int step = 0; step < 20; ++step) {
      Values rest = product(others[b], wanted, m);
      for (double& value : rest) value = -value;
      rest = product(wanted, ridged(rest, m, 2), m);
      wanted = rest;
    }
    // Rounding is doubled in each step in the directions that are left out.
    expect_at_most("newton_schulz_inverse from alpha P", m,
                   largest_difference(from_batch(pseudo, m, b), wanted), 1e-9);
  }

  expect_fits(device::start_limits_bytes<Grid, Tile, T>());
  const std::vector<T> in = batch_of<T>(mats);
  std::vector<T> limits(4, -1), result(2, -1);
  launch(device::start_limits_kernel<Grid, Tile, T>, 2, Grid * Grid, in.data(), limits.data(), m,
         int64_t(2), true);
  launch(device::start_scale_kernel<T>, 1, 128, limits.data(), limits.data() + 2, result.data(),
         int64_t(2), int64_t(1), 2.0);
  for (int b = 0; b < 2; ++b) {
    const Values square = product(mats[b], mats[b], m);
    double row_sum = 0;
    for (int i = 0; i < m; ++i) {
      double sum = 0;
      for (int j = 0; j < m; ++j) sum += mats[b][i * m + j];
      row_sum = std::max(row_sum, sum);
    }
    double scale = 2 / row_sum / row_sum;
    for (int halving = 0; halving < 10; ++halving) {
      double norm = 0, columns = 0;
      for (int j = 0; j < m; ++j) {
        double sum = 0, column = 0;
        for (int i = 0; i < m; ++i) {
          sum += std::abs((i == j) - scale * square[i * m + j]);
          column += square[i * m + j];
        }
        norm = std::max(norm, sum);
        columns = std::max(columns, column);
      }
      if (norm > 1.01 || scale * columns > 1.999) scale /= 2;
    }
    expect_at_most("start scale", m, std::abs(result[b] / scale - 1), 1e-12);
  }
  std::printf("newton_schulz_inverse, m = %d\n", m);
}

template <int Tile, class T>
void check_cholesky(int m) {
  const double ridge = 1e-2, epsilon = std::numeric_limits<T>::epsilon();
  expect_fits(device::cholesky_bytes<Tile, T>());
  std::vector<Values> mats{kernel_matrix(m, 1), kernel_matrix(m, 0.1)};
  // Of a matrix that is not symmetric the mean with its transpose.
  Values skewed = mats[0];
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < i; ++j) {
      skewed[i * m + j] += 0.25;
      skewed[j * m + i] -= 0.25;
    }
  }
  mats.push_back(skewed);
  // None of these has an inverse by Cholesky's factor.
  const int sound = static_cast<int>(mats.size());
  for (double value : {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity}) {
    mats.insert(mats.end(), 2, mats[0]);
    mats[mats.size() - 2][m - 1] = value;  // a corner; for m = 1 the matrix
    mats.back()[m * m - 1] = value;
  }
  mats.push_back(mats[0]);
  mats.back()[m * m - 1] = -1;
  mats.push_back(Values(m * m, -ridge));  // 0 with the ridge, or indefinite
  mats.push_back(mats[1]);

  const std::vector<T> in = batch_of<T>(mats);
  std::vector<T> out(in.size(), -1);
  launch(device::cholesky_inverse_kernel<Tile, T>, mats.size(), device::kCholeskyThreads, in.data(),
         out.data(), m, T(ridge), std::numeric_limits<T>::infinity(),
         std::numeric_limits<T>::quiet_NaN());
  for (int b = 0; b < static_cast<int>(mats.size()); ++b) {
    const Values inverse = from_batch(out, m, b);
    if (b >= sound && b + 1 < static_cast<int>(mats.size())) {
      for (double value : inverse) {
        if (value == value) fail("cholesky_inverse of a bad matrix", m, value, NAN);
      }
      continue;
    }
    const Values& mat = mats[b == 2 ? 0 : b];
    const Values residual = product(ridged(mat, m, ridge), inverse, m);
    // The condition is m / ridge at most. fp32 also rounds the matrix.
    expect_at_most("cholesky_inverse", m, largest_difference(residual, identity(m)),
                   20 * m / ridge * epsilon);
  }
  std::printf("cholesky_inverse, m = %d, %d bytes\n", m, int(sizeof(T)));
}

// `few` as argument: one case of each kernel, as ThreadSanitizer is slow.
int main(int count, char** arguments) {
  check_newton_schulz<8, 2>(13);
  check_cholesky<2, double>(13);
  if (count < 2 || std::string(arguments[1]) != "few") {
    for (int m : {1, 3, 16}) check_newton_schulz<8, 2>(m);
    check_newton_schulz<8, 4>(25);
    check_newton_schulz<8, 7>(49);
    check_newton_schulz<8, 8>(64);
    check_newton_schulz<16, 6>(70);
    for (int m : {1, 2, 8, 9, 16}) check_cholesky<2, double>(m);
    check_cholesky<4, double>(25);
    check_cholesky<5, double>(36);
    check_cholesky<7, double>(49);
    check_cholesky<8, double>(64);
    check_cholesky<2, float>(16);
    check_cholesky<7, float>(49);
    check_cholesky<8, float>(64);
  }
  std::printf("all checks passed\n");
}
