// Runs the device code of ops/ on a CPU and compares it with the formulas, written out.
// Prints what it checked; ends with status 1 at the first value that is off.
#include "cuda_on_cpu.h"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

using std::exp2;

#include "../../../ops/common/cuda/pairwise_device.cuh"

using namespace mmlaplace;

std::mt19937 generator(0);

std::vector<double> random_values(int64_t count) {
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  // Rounded, so that some coordinates coincide and the kink of |x| is met.
  for (double& value : values) value = std::round(normal(generator) * 8) / 8;
  return values;
}

void expect_near(const char* what, double got, double wanted) {
  if (!(std::abs(got - wanted) <= 1e-12 * (1 + std::abs(wanted)))) {
    std::printf("%s: got %.17g, wanted %.17g\n", what, got, wanted);
    std::exit(1);
  }
}

struct Case {
  int64_t batch, heads, queries, keys, dims;
  bool heads_last;  // as the toolboxes have them: (batch, tokens, heads, dims) in memory
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

template <class Metric, int ThreadsN, int ThreadsM>
void check_pairwise(const Case& c, double scale) {
  const std::vector<double> q = random_values(c.batch_heads() * c.queries * c.dims);
  const std::vector<double> k = random_values(c.batch_heads() * c.keys * c.dims);
  const std::vector<double> grad = random_values(c.batch_heads() * c.queries * c.keys);
  std::vector<double> out(grad.size(), -1);
  const bool quads = c.dims % 4 == 0;
  const int64_t blocks =
      c.batch_heads() * ceil_div(c.queries, 8 * ThreadsN) * ceil_div(c.keys, 4 * ThreadsM);
  launch(device::forward_kernel<Metric, double, double, ThreadsN, ThreadsM>, blocks,
         ThreadsN * ThreadsM,
         device::PairwiseArguments<double>{q.data(), k.data(), c.strides(c.queries),
                                           c.strides(c.keys), c.heads, c.queries, c.keys, c.dims},
         out.data(), Metric::exponent(scale) / std::log(2.0), quads, quads);

  const int64_t chunk = 40;  // more than one, the last of them short
  std::vector<double> query_grad(q.size(), -1), key_sums(k.size() * ceil_div(c.queries, chunk), -1);
  const Strides values{c.heads * c.queries * c.keys, c.queries * c.keys, c.keys, 1};
  const Strides exchanged{values.batch, values.head, values.column, values.row};
  const auto gradient = [&](device::GradientArguments<double> arguments, double* sums) {
    launch(device::gradient_kernel<Metric, double, double, double>,
           c.batch_heads() * ceil_div(arguments.num_rows, 64) * ceil_div(c.dims, 32) *
               ceil_div(arguments.num_columns, arguments.chunk),
           128, arguments, sums, Metric::derivative(scale));
  };
  gradient({q.data(), k.data(), grad.data(), out.data(), c.strides(c.queries), c.strides(c.keys),
            values, values, c.heads, c.queries, c.keys, c.dims, c.keys},
           query_grad.data());
  gradient({k.data(), q.data(), grad.data(), out.data(), c.strides(c.keys), c.strides(c.queries),
            exchanged, exchanged, c.heads, c.keys, c.queries, c.dims, chunk},
           key_sums.data());

  for (int64_t bh = 0; bh < c.batch_heads(); ++bh) {
    const Slice<const double> queries(q.data(), c.strides(c.queries), c.heads, bh);
    const Slice<const double> keys(k.data(), c.strides(c.keys), c.heads, bh);
    std::vector<double> wanted_q(c.queries * c.dims), wanted_k(c.keys * c.dims);
    for (int64_t n = 0; n < c.queries; ++n) {
      for (int64_t m = 0; m < c.keys; ++m) {
        double sum = 0;
        for (int64_t d = 0; d < c.dims; ++d)
          sum += distance(Metric{}, queries.at(n, d) - keys.at(m, d));
        const int64_t index = (bh * c.queries + n) * c.keys + m;
        expect_near("forward", out[index], std::exp(Metric::exponent(scale) * sum));
        for (int64_t d = 0; d < c.dims; ++d) {
          const double change = Metric::derivative(scale) * grad[index] * out[index] *
                                derivative(Metric{}, queries.at(n, d) - keys.at(m, d));
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
  std::vector<Case> cases{Case{2, 1, 33, 53, 17, true}};
  if (!few) {
    cases.insert(cases.end(), {Case{1, 1, 1, 1, 1, false}, Case{2, 3, 5, 49, 17, true},
                               Case{1, 2, 70, 49, 32, false}, Case{2, 1, 33, 7, 111, true},
                               Case{1, 2, 97, 100, 8, true}});
  }
  for (const Case& c : cases) {
    check_pairwise<Metric, 4, 8>(c, 3);
    check_pairwise<Metric, 16, 13>(c, 3);
    check_pairwise<Metric, 16, 16>(c, 3);
    std::printf("%s (%d, %d, %d, %d, %d): forward in 3 tile shapes, both gradients\n", name,
                int(c.batch), int(c.heads), int(c.queries), int(c.keys), int(c.dims));
  }
}

// `few` as argument: one case of each kernel, as ThreadSanitizer is slow.
int main(int count, char** arguments) {
  const bool few = count > 1 && std::string(arguments[1]) == "few";
  check_kernels<Laplacian>("laplacian_kernel", few);
  check_kernels<Gaussian>("gaussian_kernel", few);
  std::printf("all checks passed\n");
}
