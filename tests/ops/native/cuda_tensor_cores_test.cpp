// Runs the products of ops/common/cuda/tensor_cores.cuh on a CPU and compares each with a plain
// product in fp64: first single fragments, for each place of an element, then whole tiles.
// Prints what it checked; ends with status 1 at the first value that is off.
#include "cuda_on_cpu.h"

#include <cstdio>
#include <random>

using std::copysign;
using std::exp2;
using std::fabs;

#include "../../../ops/common/cuda/tensor_cores.cuh"

using namespace mmlaplace::token_tiles;

constexpr int kTile = 64;
std::mt19937 generator(0);

std::vector<float> random_values(int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

void fail(const char* what, int row, int column, double got, double wanted) {
  std::printf("%s (%d, %d): got %.17g, wanted %.17g\n", what, row, column, got, wanted);
  std::exit(1);
}
void expect_near(const char* what, int row, int column, double got, double wanted, double bound) {
  if (!(std::abs(got - wanted) <= bound)) fail(what, row, column, got, wanted);
}

// Of a product of two values, by the bits that two terms have. Sums of fp32 come on top.
double bound_of(Tf32) { return std::ldexp(1, -20); }
double bound_of(Bf16) { return std::ldexp(1, -15); }

// One block of a warp, of integers, which have one term: every element is exactly where it belongs.
// `depth` need not be a whole number of fragments.
template <class Operand, bool kTokensAreTerms>
void block_kernel(const float* a, const float* b, int depth, float* out) {
  BlockSums sums = {};
  multiply<Operand, kTokensAreTerms>(
      depth, [&](int row, int k) { return a[row * depth + k]; },
      [&](int column, int k) { return b[column * depth + k]; }, sums);
  for_sums(sums, [&](int row, int column, float sum) { out[row * kBlockColumns + column] = sum; });
}
template <class Operand, bool kTokensAreTerms>
void blocks(const char* name) {
  for (const int depth : {1, 7, 8, 16, 19}) {
    std::vector<float> a(kBlockRows * depth), b(kBlockColumns * depth);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 37 % 127);
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * 53 % 113);
    std::vector<float> out(kBlockRows * kBlockColumns, -1);
    launch(block_kernel<Operand, kTokensAreTerms>, 1, 32, a.data(), b.data(), depth, out.data());
    for (int row = 0; row < kBlockRows; ++row) {
      for (int column = 0; column < kBlockColumns; ++column) {
        double wanted = 0;
        for (int k = 0; k < depth; ++k)
          wanted += double{a[row * depth + k]} * b[column * depth + k];
        const double got = out[row * kBlockColumns + column];
        if (got != wanted) fail("block", row, column, got, wanted);
      }
    }
  }
  std::printf("%s: blocks of a warp\n", name);
}

template <class Operand>
void products_kernel(const float* a, int rows, const float* b, int columns, const float* weights,
                     const float* small, int m, const float* start, float* outer, float* moment,
                     float* variances, int* groups, float* product) {
  using Products = TensorCores<Operand>;
  Products::template add_outer<kTile>(a, rows, b, columns, weights, outer);
  Products::template add_second_moment<kTile>(a, rows, moment);
  const int used = Products::template quadratic_forms<kTile>(small, a, rows, m, variances);
  if (threadIdx.x == 0) *groups = used;
  Products::template product<kTile>(small, rows, a, m, start, product);
}

// Tiles of m landmarks and d channels, whose padding must not be read, nor written beyond it.
template <class Operand>
void tiles(const char* name, int m, int d, bool plain) {
  const int rows = static_cast<int>(mmlaplace::token_tiles::padded_marks(m));
  const int columns = static_cast<int>(mmlaplace::token_tiles::padded_channels(d));
  constexpr int pitch = kPitch<kTile>, guard = 40 * pitch;
  const double bound = bound_of(Operand{});
  const float nan = std::nanf("");
  // Beyond the rows of a tile, and in the padding of a row, is NaN.
  const auto tile = [&](int count, int filled) {
    std::vector<float> values(count * pitch + guard, nan);
    for (int r = 0; r < count; ++r) {
      const std::vector<float> row = random_values(kTile);
      for (int t = 0; t < kTile; ++t) values[r * pitch + t] = r < filled ? row[t] : 0;
    }
    return values;
  };
  const std::vector<float> a = tile(rows, m), b = tile(columns, d);
  const std::vector<float> weights = random_values(kTile), start = random_values(rows);
  std::vector<float> small(rows * rows + 40 * rows, nan);
  for (int i = 0; i < rows * rows; ++i) small[i] = i / rows < m ? random_values(1)[0] : 0;
  std::vector<float> outer = random_values(rows * columns + guard), moment(rows * rows + guard, 1);
  const std::vector<float> before = outer;
  std::vector<float> variances(rows * pitch + guard, -1), product(rows * pitch + guard, -1);
  int groups = 0;
  launch(products_kernel<Operand>, 1, kThreads, a.data(), rows, b.data(), columns,
         plain ? nullptr : weights.data(), small.data(), m, plain ? nullptr : start.data(),
         outer.data(), moment.data(), variances.data(), &groups, product.data());

  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      double wanted = before[r * columns + c], size = std::abs(wanted);
      for (int t = 0; t < kTile; ++t) {
        const double term = double{a[r * pitch + t]} * (plain ? 1 : weights[t]) * b[c * pitch + t];
        wanted += term, size += std::abs(term);
      }
      expect_near("outer", r, c, outer[r * columns + c], wanted, bound * size);
    }
    for (int c = 0; c < rows; ++c) {
      double wanted = 1, size = 1;
      for (int t = 0; t < kTile; ++t) {
        const double term = double{a[r * pitch + t]} * a[c * pitch + t];
        wanted += term, size += std::abs(term);
      }
      const double got = moment[r * rows + c];
      expect_near("second moment", r, c, got, wanted, bound * size);
      if (got != moment[c * rows + r]) fail("asymmetric", r, c, got, moment[c * rows + r]);
    }
  }
  for (int t = 0; t < kTile; ++t) {
    double form = 0, form_size = 0, got = 0;
    for (int r = 0; r < rows; ++r) {
      double wanted = plain ? 0 : start[r], size = std::abs(wanted);
      for (int k = 0; k < m; ++k) {
        const double term = double{small[k * rows + r]} * a[k * pitch + t];
        wanted += term, size += std::abs(term);
        form += term * a[r * pitch + t], form_size += std::abs(term * a[r * pitch + t]);
      }
      expect_near("product", r, t, product[r * pitch + t], wanted, bound * size);
    }
    for (int g = 0; g < groups; ++g) got += variances[g * pitch + t];
    expect_near("quadratic form", groups, t, got, form, bound * form_size);
  }
  const auto untouched = [](const char* what, const std::vector<float>& values,
                            const std::vector<float>& wanted, size_t first) {
    for (size_t i = first; i < values.size(); ++i) {
      if (values[i] != wanted[i]) fail(what, static_cast<int>(i), -1, values[i], wanted[i]);
    }
  };
  if (groups > rows / kMarks) fail("groups of variances", groups, rows, 0, 0);
  untouched("beyond the outer product", outer, before, rows * columns);
  untouched("beyond the moment", moment, std::vector<float>(moment.size(), 1), rows * rows);
  const std::vector<float> marks(product.size(), -1);
  untouched("beyond the variances", variances, marks, groups * pitch);
  untouched("beyond the product", product, marks, rows * pitch);
  std::printf("%s: m = %d, d = %d, %s: four products\n", name, m, d, plain ? "plain" : "weighted");
}

template <int Tokens>
void laplacian_kernel(float* tokens, const float* marks, int m, int d, int count,
                      const float* shift, float* tile) {
  laplacian_tile<Tokens>(tokens, marks, m, d, count, -0.125f, shift, tile);
}

// The Laplacian with distances in halves, of values whose sums have no more than 11 bits. A token
// is NaN, and two and a landmark are beyond the range of fp16.
void laplacian(int m, int d, int count) {
  const int rows = static_cast<int>(padded_marks(m)),
            channels = static_cast<int>(padded_channels(d));
  constexpr int pitch = kPitch<kTile>, bad = 3, far = 5, far_mark = 1;
  std::vector<float> tokens(channels * pitch), marks(channels * rows), tile(rows * pitch, -1);
  const std::vector<float> shift = random_values(rows);
  const auto eighths = [] { return std::round(random_values(1)[0] * 8) / 8; };
  for (int c = 0; c < d; ++c) {
    for (int t = 0; t < count; ++t) tokens[c * pitch + t] = eighths();
    for (int a = 0; a < m; ++a) marks[c * rows + a] = eighths();
  }
  tokens[bad] = std::nanf(""), tokens[far] = -1e6, tokens[far + 1] = 1e6;
  marks[far_mark] = 1e6;
  const std::vector<float> before = tokens;
  launch(laplacian_kernel<kTile>, 1, kThreads, tokens.data(), marks.data(), m, d, count,
         shift.data(), tile.data());
  for (int a = 0; a < rows; ++a) {
    for (int t = 0; t < kTile; ++t) {
      double distance = 0;
      for (int c = 0; c < d; ++c) {
        distance += std::abs(double{before[c * pitch + t]} - marks[c * rows + a]);
      }
      const bool inside = a < m && t < count;
      if (a == far_mark) distance = INFINITY;
      const double wanted = inside ? std::exp2(-0.125 * distance) - shift[a] : 0;
      const float got = tile[a * pitch + t];
      if (inside && t == bad ? !std::isnan(got) : !(std::abs(got - wanted) < 1e-6)) {
        fail("laplacian", a, t, got, wanted);
      }
    }
  }
  std::printf("distances in halves: m = %d, d = %d, %d tokens\n", m, d, count);
}

// What is not finite must not be lost, as bits cut off a NaN may leave another number.
template <class Operand>
void infinite() {
  const int depth = 8, row = 9, column = 3;
  const float bad[] = {std::nanf(""), __uint_as_float(0x7fffffff), __uint_as_float(0x7f800001),
                       INFINITY, -INFINITY};
  for (const float value : bad) {
    for (const bool left : {true, false}) {
      std::vector<float> a(kBlockRows * depth, 1), b(kBlockColumns * depth, 1);
      (left ? a[row * depth] : b[column * depth]) = value;
      std::vector<float> out(kBlockRows * kBlockColumns);
      launch(block_kernel<Operand, false>, 1, 32, a.data(), b.data(), depth, out.data());
      for (int r = 0; r < kBlockRows; ++r) {
        for (int c = 0; c < kBlockColumns; ++c) {
          const float got = out[r * kBlockColumns + c];
          const bool reached = left ? r == row : c == column;
          if (reached ? !std::isnan(got) : got != depth) fail("infinite", r, c, got, value);
        }
      }
    }
  }
}

template <class Operand>
void all(const char* name, bool few) {
  blocks<Operand, true>(name);
  blocks<Operand, false>(name);
  infinite<Operand>();
  tiles<Operand>(name, 9, 6, false);
  if (few) return;
  // Below, at and above a block's 16 and 32, and a fragment's 8.
  for (const int m : {1, 16, 32, 33, 49}) tiles<Operand>(name, m, m == 49 ? 32 : m, m % 2 == 0);
}

// `few` as argument: one case of each kernel, as ThreadSanitizer is slow.
int main(int count, char** arguments) {
  const bool few = count > 1 && std::strcmp(arguments[1], "few") == 0;
  all<Tf32>("TF32", few);
  all<Bf16>("bf16", few);
  laplacian(9, 6, 64);
  // Pairs of channels below, at and above kHalfSums.
  for (const int d : {1, 16, 32, 33}) laplacian(d + 7, d, 50);
  std::printf("all checks passed\n");
}
