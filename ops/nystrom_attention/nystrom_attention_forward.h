// The forward passes of nystrom_attention on a CPU, see docs/maths.md.
#pragma once

#include "nystrom_attention_cpu.h"

namespace mmlaplace {
namespace nystrom {

template <class Metric, class T, class S>
class Forward {
 public:
  // The result (B, N, heads, d), and zeros for what the backward needs: mean (B, heads, m) and
  // covariance (B, heads, m, m), with whitening alone, and mixed (B, heads, m, d).
  Forward(const Problem<T, S>& problem, S* out, T* mean, T* covariance, T* mixed)
      : p(problem),
        out(out),
        means(mean),
        covariance(covariance),
        mixed(mixed),
        memory({p.batch_heads * parts() * state_size()}),
        state(memory.take(p.batch_heads * parts() * state_size())) {}

  void run() const {
    if (parts() == 1) {  // a head at a time
      for_all<Scratch>(p, 1, [&](int64_t head, int64_t part, Scratch& s) {
        if (p.whitened) moments(head, part, s), whitener(head);
        mix(head, part, s), join(head), outputs(head, part, s);
      });
      return;
    }
    if (p.whitened) {
      each(p.query_parts, [&](int64_t head, int64_t part, Scratch& s) { moments(head, part, s); });
      each(1, [&](int64_t head, int64_t, Scratch&) { whitener(head); });
    }
    each(p.key_parts, [&](int64_t head, int64_t part, Scratch& s) { mix(head, part, s); });
    each(1, [&](int64_t head, int64_t, Scratch&) { join(head); });
    each(p.query_parts, [&](int64_t head, int64_t part, Scratch& s) { outputs(head, part, s); });
  }

 private:
  const Problem<T, S>& p;
  S* const out;
  T *const means, *const covariance, *const mixed;
  Arrays<T> memory;
  T* const state;

  // The buffers of a thread.
  struct Scratch {
    Arrays<T> arrays;
    T *marks, *rows, *tokens, *tile, *copy, *sums, *factors, *row, *tiles;
    int64_t head = -1;  // whose landmarks are in `marks`
    explicit Scratch(const Problem<T, S>& p)
        : arrays({p.padded * p.stride, p.padded * kTile, p.padded * kTile, p.stride * kTile,
                  p.stride * kTile, p.stride * lanes_of<T>(), kTile, p.padded, p.kept()}) {
      marks = arrays.take(p.padded * p.stride), rows = arrays.take(p.padded * kTile);
      tokens = arrays.take(p.padded * kTile), tile = arrays.take(p.stride * kTile);
      copy = arrays.take(p.stride * kTile), sums = arrays.take(p.stride * lanes_of<T>());
      factors = arrays.take(kTile), row = arrays.take(p.padded);
      tiles = arrays.take(p.kept());
    }
  };

  template <class F>
  void each(int64_t parts, const F& f) const {
    for_all<Scratch>(p, parts, f);
  }
  int64_t parts() const { return std::max(p.query_parts, p.key_parts); }

  // What the passes leave of each part of a head, for the next ones.
  int64_t state_size() const {
    return 2 * p.stride + p.stride * p.stride + (p.stride + 1) * p.padded;
  }
  T* state_of(int64_t head, int64_t part) const {
    return state + (head * parts() + part) * state_size();
  }
  T* shift(int64_t head, int64_t part) const { return state_of(head, part); }
  T* sum(int64_t head, int64_t part) const { return shift(head, part) + p.stride; }
  T* second(int64_t head, int64_t part) const { return sum(head, part) + p.stride; }
  T* mixed_sum(int64_t head, int64_t part) const {
    return second(head, part) + p.stride * p.stride;
  }
  T* value_sum(int64_t head, int64_t part) const {
    return mixed_sum(head, part) + p.stride * p.padded;
  }

  void load_marks(int64_t head, Scratch& s) const {
    if (s.head != head) p.load_marks(head, s.marks);
    s.head = head;
  }

  void kernel(const View<const S>& tokens, int64_t head, int64_t first, int64_t count,
              const T* shift, Scratch& s, T* tile) const {
    p.load_rows(tokens, true, head, first, count, s.tokens, s.rows);
    MMLAPLACE_FOR_CPU(kernel_tile<Metric, T>(s.rows, s.marks, p.stride, count, p.m, p.d, p.exponent,
                                             shift, tile));
  }

  // The place of the queries' tile, among those that are kept or alone.
  T* query_tile(int64_t first, Scratch& s) const {
    return p.kept() ? s.tiles + first / kTile * p.stride * kTile : s.tile;
  }

  // Sums of C and C C^T, less the mean of the part's first tile: without this shift the covariance
  // would be a small difference of large numbers.
  void moments(int64_t head, int64_t part, Scratch& s) const {
    T *shift_of = shift(head, part), *second_of = second(head, part);
    std::fill(s.sums, s.sums + p.stride * lanes_of<T>(), T(0));
    load_marks(head, s);
    bool shifted = false;
    for_tiles(part, p.query_parts, p.queries, [&](int64_t first, int64_t count) {
      T* tile = query_tile(first, s);
      kernel(p.q, head, first, count, shifted ? shift_of : nullptr, s, tile);
      if (!shifted) {
        MMLAPLACE_FOR_CPU(add_rows(tile, count, p.m, s.sums));
        MMLAPLACE_FOR_CPU(add_lanes(s.sums, p.m, shift_of));
        std::fill(s.sums, s.sums + p.stride * lanes_of<T>(), T(0));
        for (int64_t a = 0; a < p.m; ++a) {
          const T mean_of = shift_of[a] /= count;
          for (int64_t t = 0; t < count; ++t) tile[a * kTile + t] -= mean_of;
        }
      }
      shifted = true;
      MMLAPLACE_FOR_CPU(add_rows(tile, count, p.m, s.sums));
      MMLAPLACE_FOR_CPU(
          add_second_moment<T>(tile, nullptr, count, p.m, p.stride, s.copy, second_of));
    });
    MMLAPLACE_FOR_CPU(add_lanes(s.sums, p.m, sum(head, part)));
    MMLAPLACE_FOR_CPU(mirror(second_of, p.m, p.stride));
  }

  // The mean and the covariance of the parts together.
  void join_moments(int64_t head) const {
    const int64_t m = p.m;
    T* mean_of = means + head * m;
    T* covariance_of = covariance + head * m * m;
    const T tokens = static_cast<T>(p.queries);
    for (int64_t part = 0; part < p.query_parts; ++part) {
      const T share = part_size(part, p.query_parts, p.queries) / tokens;
      const T *shift_of = shift(head, part), *sum_of = sum(head, part);
      for (int64_t a = 0; a < m; ++a) mean_of[a] += share * shift_of[a] + sum_of[a] / tokens;
    }
    for (int64_t part = 0; part < p.query_parts; ++part) {
      const T count = static_cast<T>(part_size(part, p.query_parts, p.queries));
      if (count == 0) continue;
      const T *shift_of = shift(head, part), *sum_of = sum(head, part);
      const T* second_of = second(head, part);
      for (int64_t a = 0; a < m; ++a) {
        const T own = sum_of[a] / count, apart = own + (shift_of[a] - mean_of[a]);
        for (int64_t b = 0; b < m; ++b) {
          const T other = sum_of[b] / count, other_apart = other + (shift_of[b] - mean_of[b]);
          const T moved = second_of[a * p.stride + b] - count * own * other;
          covariance_of[a * m + b] += (moved + count * apart * other_apart) / tokens;
        }
      }
    }
  }

  // P^T Cov P, packed for the forms of the keys, in the place of the second moment.
  void whitener(int64_t head) const {
    join_moments(head);
    const int64_t m = p.m, ld = p.stride;
    Arrays<double> arrays({ld * ld, ld * ld, ld * ld}, false);
    double *matrix = arrays.take(ld * ld), *inverse = arrays.take(ld * ld);
    double* half = arrays.take(ld * ld);
    matrix_in(covariance + head * m * m, m, m, matrix, ld);
    matrix_in(p.inverse_of(head), m, m, inverse, ld);
    multiply(matrix, ld, inverse, ld, m, m, half);  // Cov is its own transpose
    multiply(inverse, ld, half, ld, m, m, matrix);
    MMLAPLACE_FOR_CPU(pack_form(matrix, m, ld, second(head, 0)));
  }

  // The sums of r_j b_j v_j^T and of v_j over a part.
  void mix(int64_t head, int64_t part, Scratch& s) const {
    T* values = value_sum(head, part);
    load_marks(head, s);
    for_tiles(part, p.key_parts, p.keys, [&](int64_t first, int64_t count) {
      kernel(p.k, head, first, count, nullptr, s, s.tile);
      p.load_tokens(p.v, head, first, count, s.tokens);
      if (p.whitened) {
        MMLAPLACE_FOR_CPU(
            quadratic_form<T>(s.tile, second(head, 0), p.stride, count, p.m, s.factors));
        add_tokens(s.tokens, count, p.padded, values);
        for (int64_t t = 0; t < count; ++t) {
          T* value = s.tokens + t * p.padded;
          const T variance = s.factors[t] < 0 ? 0 : s.factors[t];  // NaN stays
          const T factor = 1 / std::sqrt(variance + p.eps);
          for (int64_t c = 0; c < p.padded; ++c) value[c] *= factor;
        }
      }
      p.add_product(s.tile, s.tokens, count, mixed_sum(head, part));
    });
  }

  // The sums of the parts together. Their places then hold s P sum_j r_j b_j v_j^T and mean(V).
  void join(int64_t head) const {
    const int64_t m = p.m, padded = p.padded, ld = p.stride;
    T *sums = mixed_sum(head, 0), *values = value_sum(head, 0);
    for (int64_t part = 1; part < p.key_parts; ++part) {
      add(mixed_sum(head, part), m * padded, sums);
      add(value_sum(head, part), padded, values);
    }
    matrix_out(sums, padded, m, p.d, mixed + head * m * p.d);
    Arrays<double> arrays({m * ld, m * padded, m * padded}, false);
    double *transposed = arrays.take(m * ld), *summed = arrays.take(m * padded);
    double* result = arrays.take(m * padded);
    transposed_in(p.inverse_of(head), m, m, m, transposed, ld);
    matrix_in(sums, m, padded, summed, padded);
    multiply(transposed, ld, summed, padded, m, m, result);
    const T scale = p.scale_of(head);
    for (int64_t i = 0; i < m * padded; ++i) sums[i] = static_cast<T>(scale * result[i]);
    for (int64_t c = 0; c < padded; ++c) values[c] /= p.keys;
  }

  void outputs(int64_t head, int64_t part, Scratch& s) const {
    const int64_t padded = p.padded, stride = p.token_stride();
    const T *mixed_of = mixed_sum(head, 0), *shift_of = nullptr;
    load_marks(head, s);
    std::fill(s.row, s.row + padded, T(0));  // what every output starts from
    if (p.whitened) {
      shift_of = shift(head, part);
      std::copy_n(value_sum(head, 0), padded, s.row);
      for (int64_t a = 0; a < p.m; ++a) {
        const T apart = means[head * p.m + a] - shift_of[a];
        for (int64_t c = 0; c < padded; ++c) s.row[c] -= apart * mixed_of[a * padded + c];
      }
    }
    constexpr bool same = std::is_same<S, T>::value;
    const bool direct = same && padded == p.d;
    S* result = p.tokens_of(out, p.queries, head);
    for_tiles(part, p.query_parts, p.queries, [&](int64_t first, int64_t count) {
      T* tile = query_tile(first, s);
      if (!p.kept()) kernel(p.q, head, first, count, shift_of, s, tile);
      S* to = result + first * stride;
      T* target = direct ? reinterpret_cast<T*>(to) : s.tokens;
      const int64_t target_stride = direct ? stride : padded;
      for (int64_t t = 0; t < count; ++t) std::copy_n(s.row, padded, target + t * target_stride);
      MMLAPLACE_FOR_CPU(product<false, true>(tile, kTile, mixed_of, padded, count,
                                             padded / lanes_of<T>(), p.m, target, target_stride));
      for (int64_t t = 0; t < count && !direct; ++t) {
        for (int64_t c = 0; c < p.d; ++c) {
          to[t * stride + c] = static_cast<S>(s.tokens[t * padded + c]);
        }
      }
    });
  }
};

}  // namespace nystrom
}  // namespace mmlaplace
