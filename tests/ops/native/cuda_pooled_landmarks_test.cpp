// Runs the device code of pooled_landmarks on a CPU and compares it with its formula, written out.
// Prints what it checked; ends with status 1 at the first value that is off.
#include "cuda_on_cpu.h"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "../../../ops/pooled_landmarks/pooled_landmarks_device.cuh"

using namespace mmlaplace;
namespace device = mmlaplace::pooled::device;

std::mt19937 generator(0);

std::vector<double> random_values(int64_t count) {
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& value : values) value = normal(generator);
  return values;
}

void expect_near(const char* what, double got, double wanted) {
  if (!(std::abs(got - wanted) <= 1e-13 * (1 + std::abs(wanted)))) {  // sums of some tens
    std::printf("%s: got %.17g, wanted %.17g\n", what, got, wanted);
    std::exit(1);
  }
}

// Without a ratio there are rows x columns cells.
void check(int64_t batch, int64_t heads, int64_t height, int64_t width, int d, int pairs,
           bool adjacent, int64_t rows, int64_t columns, int64_t ratio) {
  if (ratio > 0) rows = ceil_div(height, ratio), columns = ceil_div(width, ratio);
  const int64_t tokens = height * width, cells = rows * columns, slices = batch * heads;
  const device::MapOfTokens map{heads, width, {height, rows, ratio}, {width, columns, ratio}, d};
  // Heads are last in memory, as the toolboxes have them and as results are.
  const Strides strides{tokens * heads * d, d, heads * d, 1};
  const std::vector<double> k = random_values(slices * tokens * d);
  const std::vector<double> grads = random_values(slices * cells * d);
  std::vector<double> angles = random_values(tokens * pairs * 2);
  for (int64_t i = 0; i < tokens * pairs; ++i) {
    const double angle = angles[2 * i];
    angles[2 * i] = std::cos(angle), angles[2 * i + 1] = std::sin(angle);
  }
  const device::Turns<double> turns{angles.data(), 1, 2, 2 * pairs, pairs, adjacent};
  std::vector<double> means(grads.size(), -1), shares(rows + columns, -1), dk(k.size(), -1);
  launch(device::pool_kernel<double, double>, slices * cells, device::kThreads, map, k.data(),
         strides, turns, means.data());
  launch(device::shares_kernel<double>, ceil_div(rows + columns, device::kThreads),
         device::kThreads, map, shares.data());
  launch(device::spread_kernel<double, double>, slices * ceil_div(tokens, device::kSpreadTokens),
         device::kThreads, map, grads.data(), shares.data(), turns, dk.data());

  for (int64_t slice = 0; slice < slices; ++slice) {
    std::vector<double> wanted(cells * d), wanted_dk(tokens * d);
    for (int64_t cell = 0; cell < cells; ++cell) {
      // The first and last rows and columns of adaptive pooling, or of squares.
      const int64_t row = cell / columns, column = cell % columns;
      const int64_t top = ratio ? row * ratio : row * height / rows;
      const int64_t left = ratio ? column * ratio : column * width / columns;
      const int64_t bottom =
          ratio ? std::min(height, top + ratio) : ceil_div((row + 1) * height, rows);
      const int64_t right =
          ratio ? std::min(width, left + ratio) : ceil_div((column + 1) * width, columns);
      const double share = 1.0 / ((bottom - top) * (right - left));
      for (int64_t y = top; y < bottom; ++y) {
        for (int64_t x = left; x < right; ++x) {
          const int64_t token = y * width + x;
          const double* from = &k[slice / heads * strides.batch + slice % heads * strides.head +
                                  token * strides.row];
          const double* grad = &grads[(slice * cells + cell) * d];
          for (int c = 0; c < d; ++c) {
            // Row c of the rotation has the cosine at c and a sine at the other of the pair.
            const bool turned = c < 2 * pairs, second = adjacent ? c % 2 : c >= pairs;
            const int pair = adjacent ? c / 2 : c % std::max(pairs, 1);
            const int other = adjacent ? c ^ 1 : second ? c - pairs : c + pairs;
            const double co = turned ? angles[(token * pairs + pair) * 2] : 1;
            const double si = turned ? angles[(token * pairs + pair) * 2 + 1] : 0;
            const double sine = second ? si : -si;
            wanted[cell * d + c] += share * (co * from[c] + (turned ? sine * from[other] : 0));
            wanted_dk[token * d + c] += share * co * grad[c];
            if (turned) wanted_dk[token * d + other] += share * sine * grad[c];
          }
        }
      }
    }
    for (int64_t i = 0; i < cells * d; ++i) {
      expect_near("mean", means[slice * cells * d + i], wanted[i]);
    }
    for (int64_t i = 0; i < tokens * d; ++i) {
      expect_near("gradient",
                  dk[slice / heads * strides.batch + slice % heads * strides.head +
                     i / d * strides.row + i % d],
                  wanted_dk[i]);
    }
  }
  std::printf("pooled_landmarks of %d x %d tokens, %d channels, in %d x %d cells\n", int(height),
              int(width), d, int(rows), int(columns));
}

// `few` as argument: one case, as ThreadSanitizer is slow.
int main(int count, char** arguments) {
  const bool few = count > 1 && std::string(arguments[1]) == "few";
  check(2, 2, 5, 7, 6, 2, false, 3, 2, 0);  // cells that overlap
  if (!few) {
    check(1, 1, 9, 5, 8, 4, true, 1, 1, 4);      // squares, shorter at the edges
    check(1, 1, 3, 2, 3, 0, false, 5, 4, 0);     // more cells than tokens
    check(1, 1, 4, 9, 130, 60, false, 2, 3, 0);  // more channels than threads
  }
  std::printf("all checks passed\n");
}
