// Runs the device code of nystrom_attention on a CPU and compares each pass with its formula,
// written out in fp64. The gradients are those of dual numbers.
// Prints what it checked; ends with status 1 at the first value that is off.
#include "cuda_on_cpu.h"

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>

using std::copysign;
using std::exp2;
using std::fabs;
using std::sqrt;

// The minimum of blocks per processor comes with the threads of a block.
#undef __launch_bounds__
#define __launch_bounds__(...)
#include "../../../ops/nystrom_attention/landmark_inverse_device.cuh"

using namespace mmlaplace;
namespace passes = mmlaplace::nystrom::device;

std::mt19937 generator(0);

template <class S = double>
std::vector<S> random_values(int64_t count) {
  std::normal_distribution<double> normal;
  std::vector<S> values(count);
  // Rounded, so that some coordinates coincide and the kink of |x| is met.
  for (S& value : values) value = std::round(normal(generator) * 8) / 8;
  return values;
}

// A number and its derivative in some direction.
struct Dual {
  double value, change;
  Dual(double value = 0, double change = 0) : value(value), change(change) {}
};
Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.change + b.change}; }
Dual operator-(Dual a, Dual b) { return {a.value - b.value, a.change - b.change}; }
Dual operator*(Dual a, Dual b) {
  return {a.value * b.value, a.change * b.value + a.value * b.change};
}
Dual power(Dual a, double exponent) {
  return {std::pow(a.value, exponent), exponent * std::pow(a.value, exponent - 1) * a.change};
}
Dual exponential(Dual a) { return {std::exp(a.value), std::exp(a.value) * a.change}; }
Dual distance(Laplacian, Dual x) {
  const double sign = x.value > 0 ? 1 : x.value < 0 ? -1 : 0;
  return {std::abs(x.value), sign * x.change};
}
Dual distance(Gaussian, Dual x) { return x * x; }

using Duals = std::vector<Dual>;

template <class S>
Duals constant(const std::vector<S>& values) {
  return Duals(values.begin(), values.end());
}
template <class S>
Duals moved(const std::vector<S>& values, const std::vector<double>& direction) {
  Duals duals = constant(values);
  for (size_t i = 0; i < duals.size(); ++i) duals[i].change = direction[i];
  return duals;
}

struct Case {
  int64_t batch, heads, tokens, m, d, pairs;
  bool adjacent, heads_last, whitened;
  int64_t batch_heads() const { return batch * heads; }
  int64_t marks_n() const { return token_tiles::padded_marks(m); }
  int64_t channels() const { return token_tiles::padded_channels(d); }
  // As the toolboxes have them, (batch, tokens, heads, dims), or with the channels apart.
  Strides strides() const {
    if (heads_last) return {tokens * heads * d, d, heads * d, 1};
    return {heads * tokens * d, tokens * d, 1, tokens};
  }
  // Of a result, whose heads are always last.
  int64_t result_at(int64_t head, int64_t token, int64_t channel) const {
    return ((head / heads * tokens + token) * heads + head % heads) * d + channel;
  }
};

double bound;
void expect_near(const char* what, double got, double wanted, double size) {
  if (!(std::abs(got - wanted) <= bound * (1 + size))) {
    std::printf("%s: got %.17g, wanted %.17g\n", what, got, wanted);
    std::exit(1);
  }
}

// The inputs of a case, and its passes.
template <class Metric, int Tokens, class S>
struct Check {
  const Case c;
  const bool shared;  // whether tiles are in shared memory
  const double bandwidth = 3, eps = 1e-2;
  const int64_t length = 2 * Tokens, parts = ceil_div(c.tokens, length);
  const int64_t blocks = c.batch_heads() * parts;
  const std::vector<S> tokens, values;
  const std::vector<double> marks, table;
  std::vector<double> padded, memory;
  std::vector<int> tickets;  // empty: nobody adds the parts
  const int64_t group = 2;

  explicit Check(const Case& c, bool shared = true)
      : c(c),
        shared(shared),
        tokens(random_values<S>(c.batch_heads() * c.tokens * c.d)),
        values(random_values<S>(c.batch_heads() * c.tokens * c.d)),
        marks(random_values(c.batch_heads() * c.m * c.d)),
        table(angles()),
        padded(pad_transposed(marks, c.m, c.d, c.marks_n(), c.channels())),
        memory(shared ? 0 : blocks * passes::Rows::key_gradients(c.m, c.d) * (Tokens + 4)) {}

  // Real cosines and sines: turning back is the transpose only of a rotation.
  std::vector<double> angles() const {
    std::vector<double> values = random_values(2 * c.pairs * c.tokens);
    for (int64_t i = 0; i < c.pairs * c.tokens; ++i) {
      const double angle = values[i];
      values[i] = std::cos(angle), values[c.pairs * c.tokens + i] = std::sin(angle);
    }
    return values;
  }

  // Matrices (batch_heads, rows, columns) padded with zeros.
  std::vector<double> pad(const std::vector<double>& from, int64_t rows, int64_t columns,
                          int64_t all_rows, int64_t all_columns) const {
    std::vector<double> to(c.batch_heads() * all_rows * all_columns);
    for (int64_t i = 0; i < static_cast<int64_t>(from.size()); ++i) {
      const int64_t head = i / (rows * columns), row = i / columns % rows;
      to[(head * all_rows + row) * all_columns + i % columns] = from[i];
    }
    return to;
  }
  std::vector<double> pad_transposed(const std::vector<double>& from, int64_t rows, int64_t columns,
                                     int64_t all_rows, int64_t all_columns) const {
    std::vector<double> transposed(from.size());
    for (int64_t i = 0; i < static_cast<int64_t>(from.size()); ++i) {
      const int64_t head = i / (rows * columns), row = i / columns % rows, column = i % columns;
      transposed[(head * columns + column) * rows + row] = from[i];
    }
    return pad(transposed, columns, rows, all_columns, all_rows);
  }
  std::vector<double> pad_m(const std::vector<double>& from) const {
    return pad(from, 1, c.m, 1, c.marks_n());
  }
  std::vector<double> pad_mm(const std::vector<double>& from) const {
    return pad(from, c.m, c.m, c.marks_n(), c.marks_n());
  }
  std::vector<double> pad_md(const std::vector<double>& from) const {
    return pad(from, c.m, c.d, c.marks_n(), c.channels());
  }
  std::vector<double> pad_dm(const std::vector<double>& from) const {
    return pad_transposed(from, c.m, c.d, c.marks_n(), c.channels());
  }
  // Symmetric, and with positive values of its quadratic form.
  std::vector<double> random_form() const {
    const std::vector<double> root = random_values(c.batch_heads() * c.m * c.m);
    std::vector<double> form(root.size());
    for (int64_t head = 0; head < c.batch_heads(); ++head) {
      const double* r = root.data() + head * c.m * c.m;
      for (int64_t a = 0; a < c.m; ++a) {
        for (int64_t b = 0; b < c.m; ++b) {
          double& sum = form[(head * c.m + a) * c.m + b];
          for (int64_t k = 0; k < c.m; ++k) sum += r[a * c.m + k] * r[b * c.m + k] / c.m;
        }
      }
    }
    return form;
  }

  passes::Pass<S, double> pass() {
    const bool quads = c.heads_last && c.d % 4 == 0;
    return {{tokens.data(), c.strides(), quads},
            {values.data(), c.strides(), quads},
            {table.data(), c.tokens, static_cast<int>(c.pairs), c.adjacent},
            padded.data(),
            shared ? nullptr : memory.data(),
            Metric::exponent(bandwidth) / std::log(2.0),
            Metric::derivative(bandwidth),
            c.heads,
            c.tokens,
            parts,
            length,
            static_cast<int>(c.m),
            static_cast<int>(c.d),
            tickets.empty() ? nullptr : tickets.data(),
            group};
  }
  template <class Kernel, class... Arguments>
  void run(Kernel kernel, int64_t rows, Arguments... arguments) {
    if (shared && rows * (Tokens + 4) * sizeof(double) > sizeof(dynamic_shared_memory)) {
      std::abort();
    }
    // What an earlier block left there must not matter.
    std::fill(std::begin(dynamic_shared_memory), std::end(dynamic_shared_memory), 0xff);
    std::fill(memory.begin(), memory.end(), std::nan(""));
    std::fill(tickets.begin(), tickets.end(), 0);
    launch(kernel, blocks, token_tiles::kThreads, pass(), arguments...);
  }

  // The sums over the parts of a head.
  double sum(const std::vector<double>& sums, int64_t head, int64_t size, int64_t index) const {
    double total = 0;
    for (int64_t part = 0; part < parts; ++part) {
      total += sums[(head * parts + part) * size + index];
    }
    return total;
  }

  // A token of a head, turned if asked.
  Duals token_of(const Duals& all, int64_t head, int64_t token, bool turn) const {
    Duals row(c.d);
    const Slice<const Dual> slice(all.data(), c.strides(), c.heads, head);
    for (int64_t i = 0; i < c.d; ++i) row[i] = slice.at(token, i);
    for (int64_t p = 0; turn && p < c.pairs; ++p) {
      const double co = table[p * c.tokens + token], si = table[(c.pairs + p) * c.tokens + token];
      Dual &x = row[c.adjacent ? 2 * p : p], &y = row[c.adjacent ? 2 * p + 1 : p + c.pairs];
      const Dual turned = x * co - y * si;
      y = x * si + y * co, x = turned;
    }
    return row;
  }
  // The kernel of a token and the landmarks.
  Duals kernel(const Duals& all, const Duals& landmarks, int64_t head, int64_t token) const {
    const Duals row = token_of(all, head, token, true);
    Duals out(c.m);
    for (int64_t a = 0; a < c.m; ++a) {
      Dual sum = 0;
      for (int64_t i = 0; i < c.d; ++i) {
        sum = sum + distance(Metric{}, row[i] - landmarks[(head * c.m + a) * c.d + i]);
      }
      out[a] = exponential(Metric::exponent(bandwidth) * sum);
    }
    return out;
  }

  // sum_k a_ik b_kj of matrices of a head
  static double product(const double* a, const double* b, int64_t i, int64_t j, int64_t terms,
                        int64_t columns) {
    double sum = 0;
    for (int64_t k = 0; k < terms; ++k) sum += a[i * terms + k] * b[k * columns + j];
    return sum;
  }
  passes::Matrices<double> matrices(const std::vector<double>& values) const {
    return {values.data(), c.m * c.m, 1, c.m};  // their transposes
  }

  void moments() {
    const int64_t n = c.marks_n(), size = n * (n + 1), m = c.m,
                  step = std::max<int64_t>(1, c.tokens / Tokens);
    const std::vector<double> inverse = random_values(c.batch_heads() * m * m);
    std::vector<double> shift(c.batch_heads() * n, -1), sums(blocks * size, -1),
        last = sums, joined_shift = shift, mean(c.batch_heads() * m), covariance(inverse.size()),
        form(c.batch_heads() * n * n, -1);
    run(passes::moments_kernel<Metric, Tokens, S, double>, passes::Rows::moments(c.m, c.d),
        sums.data(), passes::Whitener<double>{{}, shift.data(), nullptr, nullptr, nullptr});
    tickets.resize(c.batch_heads() * pass().tickets_of_head());
    run(passes::moments_kernel<Metric, Tokens, S, double>, passes::Rows::moments(c.m, c.d),
        last.data(),
        passes::Whitener<double>{matrices(inverse), joined_shift.data(), mean.data(),
                                 covariance.data(), form.data()});
    tickets.clear();
    const Duals all = constant(tokens), landmarks = constant(marks);
    for (int64_t head = 0; head < c.batch_heads(); ++head) {
      const double* shift_of = shift.data() + head * n;
      std::vector<double> sampled(n), wanted(size);
      const int64_t samples = std::min<int64_t>(Tokens, c.tokens);
      for (int64_t i = 0; i < samples; ++i) {
        const Duals values = kernel(all, landmarks, head, i * step);
        for (int64_t a = 0; a < c.m; ++a) sampled[a] += values[a].value / samples;
      }
      for (int64_t a = 0; a < n; ++a) expect_near("shift", shift_of[a], sampled[a], 0);
      for (int64_t token = 0; token < c.tokens; ++token) {
        const Duals values = kernel(all, landmarks, head, token);
        for (int64_t a = 0; a < c.m; ++a) {
          const double apart = values[a].value - shift_of[a];
          wanted[a] += apart;
          for (int64_t b = 0; b < c.m; ++b) {
            wanted[n + a * n + b] += apart * (values[b].value - shift_of[b]);
          }
        }
      }
      for (int64_t i = 0; i < size; ++i) {
        expect_near("moments", sum(sums, head, size, i), wanted[i], c.tokens);
      }
      const double* inverse_of = inverse.data() + head * m * m;  // P^T
      std::vector<double> wanted_covariance(m * m), half(m * m);
      for (int64_t i = 0; i < m * m; ++i) {
        const double first = wanted[i / m] / c.tokens, second = wanted[i % m] / c.tokens;
        wanted_covariance[i] = wanted[n + i / m * n + i % m] / c.tokens - first * second;
        expect_near("covariance", covariance[head * m * m + i], wanted_covariance[i], 1);
      }
      for (int64_t i = 0; i < m * m; ++i) {
        half[i] = product(inverse_of, wanted_covariance.data(), i / m, i % m, m, m);
      }
      for (int64_t i = 0; i < n * n; ++i) {
        const int64_t a = i / n, b = i % n;
        double value = 0;
        for (int64_t k = 0; a < m && b < m && k < m; ++k) {
          value += half[a * m + k] * inverse_of[b * m + k];
        }
        expect_near("form", form[head * n * n + i], value, m * m);
      }
      for (int64_t a = 0; a < n; ++a) {
        const double value = shift_of[a] + wanted[a] / c.tokens;
        expect_near("mean", joined_shift[head * n + a], value, 1);
        if (a < m) expect_near("mean", mean[head * m + a], value, 1);
      }
    }
  }

  // With a form as over keys, with a shift as over queries.
  void mix(bool with_shift) {
    const int64_t n = c.marks_n(), w = c.channels(), size = (n + 1) * w;
    const std::vector<double> shift = random_values(c.batch_heads() * c.m), form = random_form();
    const std::vector<double> shift_in = pad_m(shift), form_in = pad_mm(form);
    const bool weighted = c.whitened && !with_shift;
    const std::vector<double> inverse = random_values(c.batch_heads() * c.m * c.m);
    const std::vector<double> scale = random_values(c.batch_heads());
    std::vector<double> sums(blocks * size, -1), last = sums, mixed(c.batch_heads() * c.m * c.d),
                                                 result(c.batch_heads() * n * w),
                                                 start(c.batch_heads() * w);
    const auto mix = [&](std::vector<double>& to, const passes::Mixer<double>& mixer) {
      run(passes::mix_kernel<Metric, Tokens, S, double>, passes::Rows::mix(c.m, c.d),
          with_shift ? shift_in.data() : nullptr, weighted ? form_in.data() : nullptr, eps,
          to.data(), mixer);
    };
    mix(sums, {});
    tickets.resize(c.batch_heads() * pass().tickets_of_head());
    mix(last, {matrices(inverse),
               {scale.data(), c.heads, 1, 0.5},
               mixed.data(),
               result.data(),
               start.data()});
    tickets.clear();
    const Duals all = constant(tokens), landmarks = constant(marks), others = constant(values);
    for (int64_t head = 0; head < c.batch_heads(); ++head) {
      std::vector<double> wanted(size);
      for (int64_t token = 0; token < c.tokens; ++token) {
        const Duals b = kernel(all, landmarks, head, token);
        const Duals v = token_of(others, head, token, false);
        const double factor = weighted ? whitening(form, head, b).value : 1;
        for (int64_t i = 0; i < c.d; ++i) {
          for (int64_t a = 0; a < c.m; ++a) {
            const double less = with_shift ? shift[head * c.m + a] : 0;
            wanted[a * w + i] += factor * (b[a].value - less) * v[i].value;
          }
          wanted[n * w + i] += v[i].value;
        }
      }
      for (int64_t i = 0; i < size; ++i) {
        expect_near("mix", sum(sums, head, size, i), wanted[i], c.tokens);
      }
      for (int64_t i = 0; i < c.m * c.d; ++i) {
        const int64_t a = i / c.d, at = i % c.d;
        expect_near("mixed", mixed[head * c.m * c.d + i], wanted[a * w + at], c.tokens);
        double value = 0;
        for (int64_t k = 0; k < c.m; ++k) {
          value += inverse[(head * c.m + k) * c.m + a] * wanted[k * w + at];
        }
        expect_near("result", result[head * n * w + a * w + at], 0.5 * scale[head] * value,
                    c.tokens * c.m);
      }
      for (int64_t i = 0; i < w; ++i) {
        expect_near("start", start[head * w + i], wanted[n * w + i] / c.tokens, 1);
      }
    }
  }

  Dual whitening(const std::vector<double>& form, int64_t head, const Duals& b,
                 const std::vector<double>* direction = nullptr) const {
    Dual variance = 0;
    for (int64_t x = 0; x < c.m; ++x) {
      for (int64_t y = 0; y < c.m; ++y) {
        const int64_t at = (head * c.m + x) * c.m + y;
        variance = variance + b[x] * b[y] * Dual(form[at], direction ? (*direction)[at] : 0);
      }
    }
    return power(variance + eps, -0.5);
  }

  // What comes before the passes: landmarks as they read them, tickets, and the inverse.
  void preparations() {
    const int64_t m = c.m, heads = c.batch_heads(), taken = 3;
    const double ridge = 0.5, infinity = std::numeric_limits<double>::infinity();
    std::vector<double> inverse(heads * m * m, -1), prepared(padded.size(), -1), again = prepared;
    std::vector<int> counts(heads * taken, 7), others = counts;
    const int64_t size = std::max(prepared.size(), counts.size());
    launch(passes::prepare_kernel<double>, ceil_div(size, token_tiles::kThreads),
           token_tiles::kThreads, passes::Matrices<double>{marks.data(), m * c.d, c.d, 1},
           static_cast<int64_t>(prepared.size()), static_cast<int>(m), static_cast<int>(c.d),
           prepared.data(), static_cast<int64_t>(counts.size()), counts.data());
    const passes::LandmarkInverse<double> of{marks.data(),
                                             static_cast<int>(m),
                                             static_cast<int>(c.d),
                                             Metric::exponent(bandwidth) / std::log(2.0),
                                             ridge,
                                             infinity,
                                             infinity - infinity,
                                             inverse.data(),
                                             again.data(),
                                             taken,
                                             others.data()};
    launch(m <= 16 ? passes::landmark_inverse_kernel<Metric, 2, double>
                   : passes::landmark_inverse_kernel<Metric, 7, double>,
           heads, mmlaplace::device::kCholeskyThreads, of);
    if (prepared != padded || again != padded || counts != std::vector<int>(counts.size()) ||
        others != counts) {
      std::printf("landmarks and tickets are not prepared\n");
      std::exit(1);
    }
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t i = 0; i < m * m; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < m; ++k) {
          Dual apart = 0;
          for (int64_t x = 0; x < c.d; ++x) {
            const double* of_head = marks.data() + head * m * c.d;
            apart = apart + distance(Metric{}, of_head[i / m * c.d + x] - of_head[k * c.d + x]);
          }
          const double value = std::exp(Metric::exponent(bandwidth) * apart.value);
          sum += (value + (k == i / m ? ridge : 0)) * inverse[(head * m + k) * m + i % m];
        }
        expect_near("inverse", sum, i / m == i % m, m);
      }
    }
  }

  void outputs() {
    const std::vector<double> shift = random_values(c.batch_heads() * c.m);
    const std::vector<double> result = random_values(c.batch_heads() * c.m * c.d);
    const std::vector<double> start = random_values(c.batch_heads() * c.d);
    const std::vector<double> shift_in = pad_m(shift), result_in = pad_md(result);
    const std::vector<double> start_in = pad(start, 1, c.d, 1, c.channels());
    std::vector<S> out(tokens.size(), -1);
    run(passes::output_kernel<Metric, Tokens, S, double>, passes::Rows::kernel(c.m, c.d),
        c.whitened ? shift_in.data() : nullptr, result_in.data(),
        c.whitened ? start_in.data() : nullptr, out.data());
    const Duals all = constant(tokens), landmarks = constant(marks);
    for (int64_t head = 0; head < c.batch_heads(); ++head) {
      for (int64_t token = 0; token < c.tokens; ++token) {
        const Duals values = kernel(all, landmarks, head, token);
        for (int64_t i = 0; i < c.d; ++i) {
          double wanted = c.whitened ? start[head * c.d + i] : 0, size = 0;
          for (int64_t a = 0; a < c.m; ++a) {
            const double less = c.whitened ? shift[head * c.m + a] : 0;
            const double term = (values[a].value - less) * result[(head * c.m + a) * c.d + i];
            wanted += term, size += std::abs(term);
          }
          expect_near("output", out[c.result_at(head, token, i)], wanted, size);
        }
      }
    }
  }

  // The sum of gradients times a direction must be the derivative in that direction.
  struct Directional {
    double wanted = 0, got = 0, size = 0;
    void add(double gradient, double direction) {
      got += gradient * direction, size += std::abs(gradient * direction);
    }
    void check(const char* what) const { expect_near(what, got, wanted, size); }
  };
  std::vector<double> none(int64_t count) const { return std::vector<double>(count); }

  // The gradients of sum_j r_j b_j^T dG v_j + mean_grad^T v_j, where b_j depends on keys and
  // landmarks, and r_j on b_j and the form.
  void key_gradients() {
    const int64_t n = c.marks_n(), w = c.channels(), size = n * (c.whitened ? w + n : w);
    const std::vector<double> dmixed = random_values(c.batch_heads() * c.m * c.d);
    const std::vector<double> form = random_form();
    const std::vector<double> mean_grad = random_values(c.batch_heads() * c.d);
    const std::vector<double> dmixed_in = pad_md(dmixed), transposed_in = pad_dm(dmixed);
    const std::vector<double> form_in = pad_mm(form), mean_in = pad(mean_grad, 1, c.d, 1, w);
    std::vector<S> dk(tokens.size(), -1), dv(tokens.size(), -1);
    std::vector<double> sums(blocks * size);
    run(passes::key_gradients_kernel<Metric, Tokens, S, double>,
        passes::Rows::key_gradients(c.m, c.d),
        passes::KeyMatrices<double>{dmixed_in.data(), transposed_in.data(),
                                    c.whitened ? form_in.data() : nullptr,
                                    c.whitened ? mean_in.data() : nullptr, eps},
        dk.data(), dv.data(), sums.data());
    for (int input = 0; input < (c.whitened ? 4 : 3); ++input) {
      const auto direction = [&](int of, int64_t count) {
        return input == of ? random_values(count) : none(count);
      };
      const std::vector<double> to_k = direction(0, tokens.size()),
                                to_v = direction(1, tokens.size()),
                                to_marks = direction(2, marks.size());
      std::vector<double> to_form = direction(3, form.size());
      const Duals all = moved(tokens, to_k), others = moved(values, to_v),
                  landmarks = moved(marks, to_marks);
      Directional total;
      for (int64_t head = 0; head < c.batch_heads(); ++head) {
        for (int64_t token = 0; token < c.tokens; ++token) {
          const Duals b = kernel(all, landmarks, head, token);
          const Duals v = token_of(others, head, token, false);
          Dual sum = 0;
          for (int64_t a = 0; a < c.m; ++a) {
            for (int64_t i = 0; i < c.d; ++i) {
              sum = sum + b[a] * v[i] * dmixed[(head * c.m + a) * c.d + i];
            }
          }
          if (c.whitened) {
            sum = sum * whitening(form, head, b, &to_form);
            for (int64_t i = 0; i < c.d; ++i) sum = sum + v[i] * mean_grad[head * c.d + i];
          }
          total.wanted += sum.change;
          for (int64_t i = 0; i < c.d; ++i) {
            const int64_t at = c.result_at(head, token, i);
            total.add(dk[at],
                      Slice<const double>(to_k.data(), c.strides(), c.heads, head).at(token, i));
            total.add(dv[at],
                      Slice<const double>(to_v.data(), c.strides(), c.heads, head).at(token, i));
          }
        }
        for (int64_t a = 0; a < c.m; ++a) {
          for (int64_t i = 0; i < c.d; ++i) {
            total.add(sum(sums, head, size, a * w + i), to_marks[(head * c.m + a) * c.d + i]);
          }
          for (int64_t b = 0; c.whitened && b < c.m; ++b) {
            total.add(sum(sums, head, size, n * w + a * n + b),
                      to_form[(head * c.m + a) * c.m + b]);
          }
        }
      }
      const char* names[] = {"gradient of k", "gradient of v", "gradient of landmarks by keys",
                             "gradient of the form"};
      total.check(names[input]);
    }
  }

  // The gradients of sum_i c_i^T (H g_i + dmean) + (c_i - mean)^T A (c_i - mean) / 2.
  void query_gradients() {
    const int64_t n = c.marks_n(), w = c.channels(), size = n * w;
    const std::vector<double> result = random_values(c.batch_heads() * c.m * c.d);
    const std::vector<double> dmean = random_values(c.batch_heads() * c.m);
    const std::vector<double> mean = random_values(c.batch_heads() * c.m), form = random_form();
    const std::vector<double> result_in = pad_dm(result), dmean_in = pad_m(dmean);
    const std::vector<double> mean_in = pad_m(mean), form_in = pad_mm(form);
    std::vector<S> dq(tokens.size(), -1);
    std::vector<double> sums(blocks * size);
    const passes::QueryMatrices<double> plain{result_in.data(), nullptr, nullptr, nullptr};
    run(passes::query_gradients_kernel<Metric, Tokens, S, double>,
        passes::Rows::query_gradients(c.m, c.d),
        c.whitened ? passes::QueryMatrices<double>{result_in.data(), dmean_in.data(),
                                                   form_in.data(), mean_in.data()}
                   : plain,
        dq.data(), sums.data());
    for (int input = 0; input < 2; ++input) {
      const std::vector<double> to_q =
          input == 0 ? random_values(tokens.size()) : none(tokens.size());
      const std::vector<double> to_marks =
          input == 1 ? random_values(marks.size()) : none(marks.size());
      const Duals all = moved(tokens, to_q), others = constant(values),
                  landmarks = moved(marks, to_marks);
      Directional total;
      for (int64_t head = 0; head < c.batch_heads(); ++head) {
        for (int64_t token = 0; token < c.tokens; ++token) {
          const Duals values = kernel(all, landmarks, head, token);
          const Duals g = token_of(others, head, token, false);
          Dual sum = 0;
          for (int64_t a = 0; a < c.m; ++a) {
            for (int64_t i = 0; i < c.d; ++i) {
              sum = sum + values[a] * g[i] * result[(head * c.m + a) * c.d + i];
            }
            if (!c.whitened) continue;
            sum = sum + values[a] * dmean[head * c.m + a];
            for (int64_t b = 0; b < c.m; ++b) {
              sum = sum + 0.5 * form[(head * c.m + a) * c.m + b] *
                              (values[a] - mean[head * c.m + a]) *
                              (values[b] - mean[head * c.m + b]);
            }
          }
          total.wanted += sum.change;
          for (int64_t i = 0; i < c.d; ++i) {
            total.add(dq[c.result_at(head, token, i)],
                      Slice<const double>(to_q.data(), c.strides(), c.heads, head).at(token, i));
          }
        }
        for (int64_t i = 0; i < c.m * c.d; ++i) {
          total.add(sum(sums, head, size, i / c.d * w + i % c.d), to_marks[head * c.m * c.d + i]);
        }
      }
      total.check(input == 0 ? "gradient of q" : "gradient of landmarks by queries");
    }
  }

  void all(const char* name) {
    bound = sizeof(S) == sizeof(double) ? 1e-12 : 1e-6;  // of rounding the results to S
    preparations();
    moments();
    mix(false);
    mix(true);
    outputs();
    key_gradients();
    query_gradients();
    std::printf("%s (%d, %d, %d, %d, %d), %d %s pairs, %s, tiles of %d in %s memory: all passes\n",
                name, int(c.batch), int(c.heads), int(c.tokens), int(c.m), int(c.d), int(c.pairs),
                c.adjacent ? "adjacent" : "half", c.whitened ? "whitened" : "plain", Tokens,
                shared ? "shared" : "global");
  }
};

// `few` as argument: one case of each kernel, as ThreadSanitizer is slow.
int main(int count, char** arguments) {
  const bool few = count > 1 && std::string(arguments[1]) == "few";
  constexpr int tokens = passes::kTokens, fewer = passes::kFewTokens;
  // Two parts. The last one is short, and so is its last tile.
  Check<Laplacian, tokens, double>({1, 2, 150, 9, 6, 2, false, true, true}).all("laplacian");
  Check<Gaussian, fewer, double>({2, 1, 37, 5, 4, 2, true, true, true}, false).all("gaussian");
  if (!few) {
    Check<Laplacian, tokens, double>({1, 1, 1, 1, 1, 0, false, true, true}).all("laplacian");
    Check<Laplacian, tokens, float>({1, 2, 130, 49, 32, 16, false, true, true}).all("laplacian");
    Check<Laplacian, fewer, double>({1, 1, 20, 17, 12, 3, false, false, false}).all("laplacian");
    Check<Gaussian, tokens, double>({2, 2, 70, 16, 8, 4, true, false, true}).all("gaussian");
    Check<Gaussian, tokens, float>({1, 1, 64, 13, 4, 1, true, true, false}).all("gaussian");
    Check<Gaussian, tokens, double>({1, 1, 40, 49, 32, 0, false, true, false}).all("gaussian");
  }
  std::printf("all checks passed\n");
}
