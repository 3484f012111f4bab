// Runs the device code of ops/ on a CPU and compares it with the formulas, written out.
// Prints what it checked; ends with status 1 at the first value that is off.
#include "cuda_on_cpu.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

using std::copysign, std::exp2, std::fabs;

#include "../../../ops/common/cuda/pairwise_device.cuh"

using namespace mmlaplace;

std::mt19937 generator(0);

template <class S = double>
std::vector<S> random_values(int64_t count) {
  std::normal_distribution<double> normal;
  std::vector<S> values(count);
  // Rounded, so that some coordinates coincide and the kink of |x| is met. -0 is among them.
  for (S& value : values) value = static_cast<S>(std::round(normal(generator) * 8) / 8);
  return values;
}

// Sums are fp64, so that 1e-12 is a thousand roundings. A result stored in fp32 is rounded once
// more.
template <class S>
void expect_near(const char* what, S got, double wanted) {
  const double tolerance = std::is_same<S, float>::value ? 1e-6 : 1e-12;
  const bool same = got == wanted || (std::isnan(got) && std::isnan(wanted));  // infinities too
  if (!same && !(std::abs(got - wanted) <= tolerance * (1 + std::abs(wanted)))) {
    std::printf("%s: got %.17g, wanted %.17g\n", what, static_cast<double>(got), wanted);
    std::exit(1);
  }
}

struct Case {
  int64_t batch, heads, queries, keys, dims;
  bool heads_last;  // as the toolboxes have them: (batch, tokens, heads, dims) in memory
  bool hostile;     // a NaN among the queries, infinite gradients
  int64_t batch_heads() const { return batch * heads; }
  Strides strides(int64_t tokens) const {
    if (heads_last) return {tokens * heads * dims, dims, heads * dims, 1};
    return {heads * tokens * dims, tokens * dims, dims, 1};
  }
};

double distance(Laplacian, double x) { return std::abs(x); }
double distance(Gaussian, double x) { return x * x; }
double derivative(Laplacian, double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
double derivative(Gaussian, double x) { return x; }

// S is what values are stored in. If it is not double, they are converted when they are read, as
// halves are on a GPU.
template <class Metric, class ForwardTile, class GradientTile, class S>
void check_pairwise(const Case& c, double scale) {
  std::vector<S> q = random_values<S>(c.batch_heads() * c.queries * c.dims);
  const std::vector<S> k = random_values<S>(c.batch_heads() * c.keys * c.dims);
  std::vector<S> grad = random_values<S>(c.batch_heads() * c.queries * c.keys),
                 out(grad.size(), -1);
  if (c.hostile) {
    q[q.size() / 2] = std::numeric_limits<S>::quiet_NaN();
    grad.front() = std::numeric_limits<S>::infinity();
    grad.back() = -std::numeric_limits<S>::infinity();
  }
  const bool quads = c.dims % 4 == 0;
  const int64_t blocks = c.batch_heads() * ceil_div(c.queries, ForwardTile::kTileN) *
                         ceil_div(c.keys, ForwardTile::kTileM);
  launch(device::forward_kernel<Metric, S, double, ForwardTile>, blocks, ForwardTile::kThreads,
         device::PairwiseArguments<S>{q.data(), k.data(), c.strides(c.queries), c.strides(c.keys),
                                      c.heads, c.queries, c.keys, c.dims, quads, quads},
         out.data(), Metric::exponent(scale) / std::log(2.0));

  const int64_t chunk = 40;  // more than one, the last of them short
  std::vector<S> query_grad(q.size(), -1);
  std::vector<double> key_sums(k.size() * ceil_div(c.queries, chunk), -1);
  const Strides values{c.heads * c.queries * c.keys, c.queries * c.keys, c.keys, 1};
  const Strides exchanged{values.batch, values.head, values.column, values.row};
  const auto gradient = [&](device::GradientArguments<S> arguments, auto* sums) {
    launch(device::gradient_kernel<Metric, S, double, std::decay_t<decltype(*sums)>, GradientTile>,
           c.batch_heads() * ceil_div(arguments.num_rows, GradientTile::kBlockRows) *
               ceil_div(c.dims, GradientTile::kBlockChannels) *
               ceil_div(arguments.num_columns, arguments.chunk),
           GradientTile::kThreads, arguments, sums, Metric::derivative(scale));
  };
  gradient({q.data(), k.data(), grad.data(), out.data(), c.strides(c.queries), c.strides(c.keys),
            values, values, c.heads, c.queries, c.keys, c.dims, c.keys, quads},
           query_grad.data());
  gradient({k.data(), q.data(), grad.data(), out.data(), c.strides(c.keys), c.strides(c.queries),
            exchanged, exchanged, c.heads, c.keys, c.queries, c.dims, chunk, quads},
           key_sums.data());

  for (int64_t bh = 0; bh < c.batch_heads(); ++bh) {
    const Slice<const S> queries(q.data(), c.strides(c.queries), c.heads, bh);
    const Slice<const S> keys(k.data(), c.strides(c.keys), c.heads, bh);
    std::vector<double> wanted_q(c.queries * c.dims), wanted_k(c.keys * c.dims);
    for (int64_t n = 0; n < c.queries; ++n) {
      for (int64_t m = 0; m < c.keys; ++m) {
        double sum = 0;
        for (int64_t d = 0; d < c.dims; ++d)
          sum += distance(Metric{}, double(queries.at(n, d)) - keys.at(m, d));
        const int64_t index = (bh * c.queries + n) * c.keys + m;
        expect_near("forward", out[index], std::exp(Metric::exponent(scale) * sum));
        for (int64_t d = 0; d < c.dims; ++d) {
          const double change = Metric::derivative(scale) * grad[index] * out[index] *
                                derivative(Metric{}, double(queries.at(n, d)) - keys.at(m, d));
          wanted_q[n * c.dims + d] += change;
          wanted_k[m * c.dims + d] -= change;
        }
      }
    }
    for (int64_t i = 0; i < c.queries * c.dims; ++i) {
      expect_near("gradient of q", query_grad[bh * c.queries * c.dims + i], wanted_q[i]);
    }
    for (int64_t i = 0; i < c.keys * c.dims; ++i) {
      double sum = 0;
      for (int64_t part = 0; part < ceil_div(c.queries, chunk); ++part) {
        sum += key_sums[(part * c.batch_heads() + bh) * c.keys * c.dims + i];
      }
      expect_near("gradient of k", sum, wanted_k[i]);
    }
  }
}

template <class Metric>
void check_kernels(const char* name, bool few) {
  std::vector<Case> cases{Case{2, 1, 33, 53, 17, true, false}};
  if (!few) {
    cases.insert(cases.end(),
                 {Case{1, 1, 1, 1, 1, false, false}, Case{2, 3, 5, 49, 17, true, true},
                  Case{1, 2, 70, 49, 32, false, false}, Case{1, 2, 70, 49, 32, true, true},
                  Case{2, 1, 33, 7, 111, true, false}, Case{1, 2, 97, 100, 8, true, false}});
  }
  for (const Case& c : cases) {
    check_pairwise<Metric, device::ForwardTile32, device::GradientTile64, double>(c, 3);
    check_pairwise<Metric, device::ForwardTile52, device::GradientTile52, double>(c, 3);
    check_pairwise<Metric, device::ForwardTile64, device::GradientTile64, float>(c, 3);
    check_pairwise<Metric, device::ForwardTile52, device::GradientTile52, float>(c, 3);
    std::printf("%s (%d, %d, %d, %d, %d)%s: forward in 3 tile shapes, both gradients in 2\n", name,
                int(c.batch), int(c.heads), int(c.queries), int(c.keys), int(c.dims),
                c.hostile ? ", NaN and infinities" : "");
  }
}

// Rows so far apart that the offset of the last has more than 32 bits, in values: an offset that is
// computed in 32 bits reads outside of the mapping, or another row.
void check_far_rows() {
  constexpr int64_t kRows = 6, kDims = 8, kStride = (int64_t{1} << 30) + 4;
  const std::size_t bytes = (kRows * kStride + kDims) * sizeof(double);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::printf("far rows: not checked, %zu GB of addresses are refused\n", bytes >> 30);
    return;
  }
  double* far = static_cast<double*>(memory);
  const std::vector<double> near = random_values(kRows * kDims), key = random_values(kDims);
  for (int64_t i = 0; i < kRows * kDims; ++i) far[i / kDims * kStride + i % kDims] = near[i];
  const Strides strides{0, 0, kStride, 1}, close{0, 0, kDims, 1};
  using Tile = device::ForwardTile32;
  for (const bool quads : {true, false}) {
    std::vector<double> out(kRows, -1);
    launch(device::forward_kernel<Laplacian, double, double, Tile>, 1, Tile::kThreads,
           device::PairwiseArguments<double>{far, key.data(), strides, close, 1, kRows, 1, kDims,
                                             quads, quads},
           out.data(), -1 / std::log(2.0));
    for (int64_t n = 0; n < kRows; ++n) {
      double sum = 0;
      for (int64_t d = 0; d < kDims; ++d) sum += std::abs(near[n * kDims + d] - key[d]);
      expect_near("forward of far rows", out[n], std::exp(-sum));
    }
  }
  munmap(memory, bytes);
  std::printf("far rows\n");
}

// `few` as argument: one case of each kernel, as ThreadSanitizer is slow.
int main(int count, char** arguments) {
  const bool few = count > 1 && std::string(arguments[1]) == "few";
  check_kernels<Laplacian>("laplacian_kernel", few);
  check_kernels<Gaussian>("gaussian_kernel", few);
  if (!few) check_far_rows();
  std::printf("all checks passed\n");
}
