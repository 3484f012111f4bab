// Runs the device code of linear_attention on a CPU and compares it with its formula, written out
// in fp64. The gradients are those of dual numbers. Prints what it checked; ends with status 1 at
// the first value that is off.
#include "cuda_on_cpu.h"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

using std::copysign;
using std::exp2;
using std::fabs;
using std::sqrt;

// The minimum of blocks per processor comes with the threads of a block.
#undef __launch_bounds__
#define __launch_bounds__(...)
#include "../../../ops/linear_attention/linear_attention_device.cuh"

using namespace mmlaplace;
namespace device = mmlaplace::linear::device;
using linear::Features;

std::mt19937 generator(0);

template <class S>
std::vector<S> random_values(int64_t count) {
  std::normal_distribution<double> normal;
  std::vector<S> values(count);
  for (S& value : values) value = static_cast<S>(normal(generator));
  return values;
}

// A number and its derivative in some direction.
struct Dual {
  double value, change;
  Dual(double value = 0, double change = 0) : value(value), change(change) {}
};
Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.change + b.change}; }
Dual operator*(Dual a, Dual b) {
  return {a.value * b.value, a.change * b.value + a.value * b.change};
}
Dual operator/(Dual a, Dual b) {
  return {a.value / b.value, (a.change - a.value / b.value * b.change) / b.value};
}
Dual made(Features features, Dual x) {
  if (features == Features::none) return x;
  if (x.value > 0) return features == Features::relu ? x : x + 1;
  const double e = std::exp(x.value);
  return features == Features::relu ? Dual(0) : Dual(e, e * x.change);
}

struct Case {
  int64_t batch, heads, queries, keys;
  int f, d, streams;
  bool tops, heads_last, shared;
  Features features;
};

// Tokens (batch, tokens, heads, width), or with the channels apart, and their gradient.
template <class S>
struct Tokens {
  const Case& c;
  const int64_t count, width;
  const std::vector<S> values = random_values<S>(c.batch * c.heads * count * width);
  const std::vector<double> direction = random_values<double>(values.size());
  std::vector<S> grads = std::vector<S>(values.size(), -1);

  Strides strides() const {
    if (c.heads_last) return {count * c.heads * width, width, c.heads * width, 1};
    return {c.heads * count * width, count * width, 1, count};
  }
  token_tiles::Source<S> source() const {
    return {values.data(), strides(), c.heads_last && width % 4 == 0};
  }
  int64_t at(int64_t head, int64_t token, int64_t channel) const {
    const Strides s = strides();
    return head / c.heads * s.batch + head % c.heads * s.head + token * s.row + channel * s.column;
  }
  // Of a result, whose heads are always last.
  int64_t result_at(int64_t head, int64_t token, int64_t channel) const {
    return ((head / c.heads * count + token) * c.heads + head % c.heads) * width + channel;
  }
  Dual dual(int64_t head, int64_t token, int64_t channel) const {
    const int64_t i = at(head, token, channel);
    return {static_cast<double>(values[i]), direction[i]};
  }
};

double bound;
void expect_near(const char* what, double got, double wanted, double size) {
  if (!(std::abs(got - wanted) <= bound * (1 + size))) {
    std::printf("%s: got %.17g, wanted %.17g\n", what, got, wanted);
    std::exit(1);
  }
}

template <int kTile, class S, class Products = device::FmaUnits, class T = double>
void check(const Case& c) {
  // Of rounding to S, and with tensor cores of two terms of TF32 or bf16.
  bound = !std::is_same<T, double>::value ? 2e-5 : sizeof(S) == sizeof(double) ? 1e-12 : 1e-6;
  const int64_t slices = c.batch * c.heads, size = int64_t{c.f} * (c.d + 1);
  Tokens<S> q{c, c.queries, c.f}, k{c, c.keys, c.f}, v{c, c.keys, c.d};
  Tokens<S> top_q{c, c.queries, c.f}, top_k{c, c.keys, c.f}, g{c, c.queries, c.d};
  std::vector<S> out(g.values.size(), -1);
  const double eps = 30;  // so that features of either sign have no sum near zero
  const int64_t length = 2 * kTile, key_parts = ceil_div(c.keys, length),
                query_parts = ceil_div(c.queries, length);
  std::vector<T> memory, kept(slices * size),
      sums(slices * std::max(key_parts, query_parts) * size);
  const auto run = [&](auto kernel, const auto& memory_of, const Tokens<S>& tokens,
                       const Tokens<S>& tops, const Tokens<S>& values, auto... arguments) {
    const int64_t parts = ceil_div(tokens.count, length);
    const device::Memory needs = memory_of(c.f, c.d, c.tops, c.streams);
    const int64_t used = needs.rows * token_tiles::kPitch<kTile> + needs.values;
    if (c.shared && used * sizeof(T) > sizeof(dynamic_shared_memory)) std::abort();
    // What an earlier block left there must not matter.
    std::fill(std::begin(dynamic_shared_memory), std::end(dynamic_shared_memory), 0xff);
    memory.assign(c.shared ? 0 : slices * parts * used, std::nan(""));
    const device::Pass<S, T> pass{tokens.source(),
                                  c.tops ? tops.source() : token_tiles::Source<S>{},
                                  values.source(),
                                  c.shared ? nullptr : memory.data(),
                                  c.heads,
                                  tokens.count,
                                  parts,
                                  length,
                                  c.features,
                                  {c.streams, c.f, c.d},
                                  static_cast<T>(eps)};
    launch(kernel, slices * parts, token_tiles::kThreads, pass, needs, arguments...);
  };
  const T share = T(1) / c.keys;
  const T* const read = sums.data();
  run(device::key_sums_kernel<kTile, S, T, Products>, device::Memory::key_sums, k, top_k, v,
      sums.data());
  run(device::outputs_kernel<kTile, S, T, Products>, device::Memory::outputs, q, top_q, q, read,
      key_parts, share, kept.data(), out.data());
  run(device::query_gradients_kernel<kTile, S, T, Products>, device::Memory::query_gradients, q,
      top_q, g, static_cast<const T*>(kept.data()), q.grads.data(), top_q.grads.data(),
      sums.data());
  run(device::key_gradients_kernel<kTile, S, T, Products>, device::Memory::key_gradients, k, top_k,
      v, read, query_parts, share, k.grads.data(), top_k.grads.data(), v.grads.data());

  // The sum of gradients times directions must be the derivative of sum g out in that direction.
  double wanted_change = 0, change = 0, total = 0;
  for (int64_t head = 0; head < slices; ++head) {
    std::vector<Dual> mean(size);
    for (int64_t j = 0; j < c.keys; ++j) {
      for (int r = 0; r < c.f; ++r) {
        const Dual key = made(c.features, k.dual(head, j, r));
        const Dual top = c.tops ? top_k.dual(head, j, r) : key;
        for (int i = 0; i < c.d; ++i) {
          Dual& sum = mean[r * (c.d + 1) + i];
          sum = sum + top * v.dual(head, j, i) * (1.0 / c.keys);
        }
        mean[r * (c.d + 1) + c.d] = mean[r * (c.d + 1) + c.d] + key * (1.0 / c.keys);
      }
    }
    for (int64_t i = 0; i < size; ++i) expect_near("sum", kept[head * size + i], mean[i].value, 1);
    for (int64_t i = 0; i < c.queries; ++i) {
      for (int channel = 0; channel < c.d; ++channel) {
        const bool opposite = c.streams == 2 && channel >= (c.d + 1) / 2;
        Dual above = 0, below = eps;
        for (int r = 0; r < c.f; ++r) {
          const int met = opposite ? (r + c.f / 2) % c.f : r;
          const Dual query = made(c.features, q.dual(head, i, r));
          const Dual top = c.tops ? top_q.dual(head, i, r) : query;
          above = above + top * mean[met * (c.d + 1) + channel];
          below = below + query * mean[met * (c.d + 1) + c.d];
        }
        const Dual wanted = above / below;
        expect_near("output", out[g.result_at(head, i, channel)], wanted.value, 1);
        wanted_change += g.values[g.at(head, i, channel)] * wanted.change;
      }
    }
  }
  for (const Tokens<S>* tokens : {&q, &k, &v, &top_q, &top_k}) {
    if (!c.tops && (tokens == &top_q || tokens == &top_k)) continue;
    for (int64_t head = 0; head < slices; ++head) {
      for (int64_t i = 0; i < tokens->count; ++i) {
        for (int channel = 0; channel < tokens->width; ++channel) {
          const double term = tokens->grads[tokens->result_at(head, i, channel)] *
                              tokens->direction[tokens->at(head, i, channel)];
          change += term, total += std::abs(term);
        }
      }
    }
  }
  expect_near("gradient", change, wanted_change, total);
  std::printf("(%d, %d, %d, %d), %d features, %d channels, %d streams%s%s: four passes\n",
              int(c.batch), int(c.heads), int(c.queries), int(c.keys), c.f, c.d, c.streams,
              c.tops ? ", a numerator" : "", c.shared ? "" : ", in global memory");
}

// `few` as argument: two cases, as ThreadSanitizer is slow.
int main(int count, char** arguments) {
  const bool few = count > 1 && std::string(arguments[1]) == "few";
  constexpr int tokens = device::kTokens, fewer = device::kFewTokens;
  check<fewer, double>({1, 2, 40, 35, 6, 5, 2, true, true, true, Features::elu_plus_one});
  check<tokens, float, device::TensorCores<token_tiles::Tf32>, float>(
      {1, 1, 66, 70, 8, 4, 1, false, true, true, Features::relu});
  if (!few) {
    check<tokens, float>({2, 2, 131, 140, 12, 33, 1, false, true, true, Features::elu_plus_one});
    check<tokens, float>({1, 2, 70, 200, 8, 8, 2, false, true, true, Features::relu});
    check<fewer, double>({1, 1, 1, 1, 3, 2, 1, true, false, false, Features::none});
    check<fewer, float>({2, 1, 40, 20, 10, 4, 2, true, false, false, Features::none});
    check<tokens, float, device::TensorCores<token_tiles::Bf16>, float>(
        {1, 1, 70, 66, 36, 20, 2, true, false, true, Features::elu_plus_one});
  }
  std::printf("all checks passed\n");
}
