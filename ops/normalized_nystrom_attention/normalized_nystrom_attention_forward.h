// The forward passes of normalized_nystrom_attention on a CPU: one over the keys, one over the
// queries. See docs/maths.md.
#pragma once

#include "normalized_nystrom_attention_cpu.h"

namespace mmlaplace {
namespace normalized_nystrom {

template <class Metric, class T, class S>
class Forward {
 public:
  // The result (B, N, heads, d), and zeros for what the backward needs: key_sum (B, heads, m) and
  // mixed (B, heads, m, d).
  Forward(const Problem<T, S>& problem, T floor, S* out, T* key_sum, T* mixed)
      : p(problem),
        floor(floor),
        out(out),
        key_sum(key_sum),
        mixed(mixed),
        memory({p.batch_heads * p.key_parts * state_size()}),
        state(memory.take(p.batch_heads * p.key_parts * state_size())) {}

  void run() const {
    if (p.query_parts == 1 && p.key_parts == 1) {  // a head at a time
      nystrom::for_all<Scratch>(p, 1, [&](int64_t head, int64_t part, Scratch& s) {
        sum_keys(head, part, s), join(head), outputs(head, part, s);
      });
      return;
    }
    each(p.key_parts, [&](int64_t head, int64_t part, Scratch& s) { sum_keys(head, part, s); });
    each(1, [&](int64_t head, int64_t, Scratch&) { join(head); });
    each(p.query_parts, [&](int64_t head, int64_t part, Scratch& s) { outputs(head, part, s); });
  }

 private:
  const Problem<T, S>& p;
  const T floor;
  S* const out;
  T *const key_sum, *const mixed;
  Arrays<T> memory;
  T* const state;

  // The buffers of a thread.
  struct Scratch {
    Arrays<T> arrays;
    T *marks, *rows, *tokens, *tile, *sums, *factors;
    int64_t head = -1;  // whose landmarks are in `marks`
    explicit Scratch(const Problem<T, S>& p)
        : arrays({p.padded * p.stride, p.padded * kTile, p.padded * kTile, p.stride * kTile,
                  p.stride * nystrom::lanes_of<T>(), kTile}) {
      marks = arrays.take(p.padded * p.stride), rows = arrays.take(p.padded * kTile);
      tokens = arrays.take(p.padded * kTile), tile = arrays.take(p.stride * kTile);
      sums = arrays.take(p.stride * nystrom::lanes_of<T>()), factors = arrays.take(kTile);
    }
  };

  template <class F>
  void each(int64_t parts, const F& f) const {
    nystrom::for_all<Scratch>(p, parts, f);
  }

  // The sums of b_j v_j^T and of b_j over each part of a head. Of the first part they become H, h
  // and the smallest sum.
  int64_t state_size() const { return p.stride * p.padded + p.stride + 1; }
  Weighted<T> sums_of(int64_t head, int64_t part) const {
    T* values = state + (head * p.key_parts + part) * state_size();
    T* sums = values + p.stride * p.padded;
    return {values, sums, sums + p.stride};
  }

  void load_marks(int64_t head, Scratch& s) const {
    if (s.head != head) p.load_marks(head, s.marks);
    s.head = head;
  }

  void sum_keys(int64_t head, int64_t part, Scratch& s) const {
    const Weighted<T> sums = sums_of(head, part);
    std::fill(s.sums, s.sums + p.stride * nystrom::lanes_of<T>(), T(0));
    load_marks(head, s);
    nystrom::for_tiles(part, p.key_parts, p.keys, [&](int64_t first, int64_t count) {
      p.load_rows(p.k, true, head, first, count, s.tokens, s.rows);
      MMLAPLACE_FOR_CPU(kernel_tile<Metric, T>(s.rows, s.marks, p.stride, count, p.m, p.d,
                                               p.exponent, nullptr, s.tile));
      p.load_tokens(p.v, head, first, count, s.tokens);
      p.add_product(s.tile, s.tokens, count, sums.values);
      MMLAPLACE_FOR_CPU(add_rows(s.tile, count, p.m, s.sums));
    });
    MMLAPLACE_FOR_CPU(add_lanes(s.sums, p.m, sums.sums));
  }

  void join(int64_t head) const {
    const Weighted<T> sums = sums_of(head, 0);
    for (int64_t part = 1; part < p.key_parts; ++part) {
      nystrom::add(sums_of(head, part).values, p.m * p.padded, sums.values);
      nystrom::add(sums_of(head, part).sums, p.m, sums.sums);
    }
    T *mixed_of = mixed + head * p.m * p.d, *key_sum_of = key_sum + head * p.m;
    nystrom::matrix_out(sums.values, p.padded, p.m, p.d, mixed_of);
    std::copy_n(sums.sums, p.m, key_sum_of);
    through_inverse(p, head, floor, mixed_of, p.d, key_sum_of, sums);
  }

  void outputs(int64_t head, int64_t part, Scratch& s) const {
    const int64_t padded = p.padded, stride = p.token_stride();
    const Weighted<T> weighted = sums_of(head, 0);
    constexpr bool same = std::is_same<S, T>::value;
    const bool direct = same && padded == p.d;
    S* result = p.tokens_of(out, p.queries, head);
    load_marks(head, s);
    nystrom::for_tiles(part, p.query_parts, p.queries, [&](int64_t first, int64_t count) {
      p.load_rows(p.q, true, head, first, count, s.tokens, s.rows);
      query_tile<Metric>(p, s.rows, s.marks, count, weighted, s.tile, s.factors);
      MMLAPLACE_FOR_CPU(scale_tokens(s.factors, count, p.m, s.tile));
      S* to = result + first * stride;
      T* target = direct ? reinterpret_cast<T*>(to) : s.tokens;
      MMLAPLACE_FOR_CPU(product<false, false>(s.tile, kTile, weighted.values, padded, count,
                                              padded / nystrom::lanes_of<T>(), p.m, target,
                                              direct ? stride : padded));
      for (int64_t t = 0; t < count && !direct; ++t) {
        for (int64_t c = 0; c < p.d; ++c) {
          to[t * stride + c] = static_cast<S>(s.tokens[t * padded + c]);
        }
      }
    });
  }
};

}  // namespace normalized_nystrom
}  // namespace mmlaplace
