// The forward of kernel_attention on a CPU: tiles of kTile queries by kTile keys.
#pragma once

#include <limits>

#include "../nystrom_attention/nystrom_attention_cpu.h"

namespace mmlaplace {
namespace exact {

using nystrom::Problem;

template <class Metric, class T, class S>
class Forward {
 public:
  // The result (B, N, heads, d), the same in T, and the logarithms of the sums of rows (B, heads,
  // N).
  Forward(const Problem<T, S>& problem, S* out, T* means, T* log_sums)
      : p(problem), out(out), means(means), log_sums(log_sums) {}

  void run() const {
    nystrom::for_all<Scratch>(p, ceil_div(p.queries, kTile),
                              [&](int64_t head, int64_t tile, Scratch& s) {
                                const int64_t first = tile * kTile;
                                attend(head, first, std::min(kTile, p.queries - first), s);
                              });
  }

 private:
  const Problem<T, S>& p;
  S* const out;
  T *const means, *const log_sums;

  // The buffers of a thread: queries, keys and results as [channel][token], and `tile` as
  // [key][query].
  struct Scratch {
    Arrays<T> arrays;
    T *rows, *keys, *tokens, *outs, *tile, *largest, *sums, *factors;
    explicit Scratch(const Problem<T, S>& p)
        : arrays({p.padded * kTile, p.padded * kTile, p.padded * kTile, p.padded * kTile,
                  kTile * kTile, kTile, kTile, kTile}) {
      rows = arrays.take(p.padded * kTile), keys = arrays.take(p.padded * kTile);
      tokens = arrays.take(p.padded * kTile), outs = arrays.take(p.padded * kTile);
      tile = arrays.take(kTile * kTile);
      largest = arrays.take(kTile), sums = arrays.take(kTile), factors = arrays.take(kTile);
    }
  };

  void attend(int64_t head, int64_t first, int64_t count, Scratch& s) const {
    std::fill_n(s.outs, p.padded * kTile, T(0));
    std::fill_n(s.sums, kTile, T(0));
    std::fill_n(s.largest, kTile, -std::numeric_limits<T>::infinity());
    p.load_rows(p.q, true, head, first, count, s.tokens, s.rows);
    for (int64_t key = 0; key < p.keys; key += kTile) {
      add_keys(head, key, std::min(kTile, p.keys - key), count, s);
    }
    T* log_sums_of = log_sums + head * p.queries + first;
    for (int64_t t = 0; t < count; ++t) {
      s.factors[t] = 1 / s.sums[t];
      log_sums_of[t] = s.largest[t] + std::log2(s.sums[t]);
    }
    MMLAPLACE_FOR_CPU(scale_tokens(s.factors, count, p.d, s.outs));
    const int64_t place = p.tokens_of(out, p.queries, head) - out + first * p.token_stride();
    MMLAPLACE_FOR_CPU(store_rows(s.outs, first, count, p.d, Rotation<T>(), s.tokens, out + place,
                                 p.token_stride()));
    MMLAPLACE_FOR_CPU(store_rows(s.outs, first, count, p.d, Rotation<T>(), s.tokens, means + place,
                                 p.token_stride()));
  }

  // The sums over keys before are scaled to the largest kernel so far, and those of a tile added.
  void add_keys(int64_t head, int64_t first, int64_t keys, int64_t count, Scratch& s) const {
    p.load_rows(p.k, true, head, first, keys, s.tokens, s.keys);
    MMLAPLACE_FOR_CPU(kernel_tile<Metric, T, false>(s.rows, s.keys, kTile, count, keys, p.d,
                                                    p.exponent, nullptr, s.tile));
    MMLAPLACE_FOR_CPU(powers_so_far(count, keys, s.tile, s.largest, s.sums, s.factors));
    MMLAPLACE_FOR_CPU(scale_tokens(s.factors, count, p.d, s.outs));
    p.load_tokens(p.v, head, first, keys, s.tokens);
    p.template to_tile<true>(s.tokens, p.padded, s.tile, count, p.d, keys, s.outs);
  }
};

}  // namespace exact
}  // namespace mmlaplace
