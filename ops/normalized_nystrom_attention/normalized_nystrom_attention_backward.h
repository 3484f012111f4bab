// The backward passes of normalized_nystrom_attention on a CPU: one over the queries, one over the
// keys. See docs/maths.md. Names such as `dmixed` are gradients.
#pragma once

#include "../common/tensor.h"

#include "../common/pairwise.h"
#include "normalized_nystrom_attention_cpu.h"

namespace mmlaplace {
namespace normalized_nystrom {

template <class Metric, class T, class S>
class Backward {
 public:
  Tensor dq, dk, dv;            // (B, N or n, heads, d)
  Tensor dlandmarks, dinverse;  // in T

  Backward(const Problem<T, S>& problem, T floor, const Tensor& grad_tokens, const Tensor& key_sum,
           const Tensor& mixed)
      : p(problem), floor(floor), grad(view<const S>(grad_tokens)), key_sum(key_sum), mixed(mixed) {
    const int64_t batch = grad_tokens.size(0);
    dq = empty({batch, p.queries, p.heads, p.d}, grad_tokens);
    dk = empty({batch, p.keys, p.heads, p.d}, grad_tokens);
    dv = empty({batch, p.keys, p.heads, p.d}, grad_tokens);
    dlandmarks = zeros({batch, p.heads, p.m, p.d});
    dinverse = zeros({batch, p.heads, p.m, p.m});
    parts_memory = zeros({p.batch_heads * parts(), part_size()});
    heads_memory = zeros({p.batch_heads, head_size()});
    parts_state = parts_memory.template data_ptr<T>();
    heads_state = heads_memory.template data_ptr<T>();
  }

  void run() const {
    if (parts() == 1) {  // a head at a time
      nystrom::for_all<Scratch>(p, 1, [&](int64_t head, int64_t part, Scratch& s) {
        before_queries(head), query_pass(head, part, s), after_queries(head);
        key_pass(head, part, s), after_keys(head);
      });
      return;
    }
    each(1, [&](int64_t head, int64_t, Scratch&) { before_queries(head); });
    each(p.query_parts, [&](int64_t head, int64_t part, Scratch& s) { query_pass(head, part, s); });
    each(1, [&](int64_t head, int64_t, Scratch&) { after_queries(head); });
    each(p.key_parts, [&](int64_t head, int64_t part, Scratch& s) { key_pass(head, part, s); });
    each(1, [&](int64_t head, int64_t, Scratch&) { after_keys(head); });
  }

 private:
  const Problem<T, S>& p;
  const T floor;
  const View<const S> grad;
  const Tensor key_sum, mixed;
  Tensor parts_memory, heads_memory;
  T *parts_state, *heads_state;

  // The buffers of a thread. `tile` and `dtile` are [landmark][token].
  struct Scratch {
    Arrays<T> arrays;
    T *marks, *mark_grads, *rows, *values, *others, *tokens, *tile, *dtile, *sums, *factors, *dots;
    explicit Scratch(const Problem<T, S>& p)
        : arrays({p.padded * p.stride, p.m * p.d * nystrom::lanes_of<T>(), p.padded * kTile,
                  p.padded * kTile, p.padded * kTile, p.padded * kTile, p.stride * kTile,
                  p.stride * kTile, p.stride * nystrom::lanes_of<T>(), kTile, kTile}) {
      marks = arrays.take(p.padded * p.stride);
      mark_grads = arrays.take(p.m * p.d * nystrom::lanes_of<T>());
      rows = arrays.take(p.padded * kTile), values = arrays.take(p.padded * kTile);
      others = arrays.take(p.padded * kTile), tokens = arrays.take(p.padded * kTile);
      tile = arrays.take(p.stride * kTile), dtile = arrays.take(p.stride * kTile);
      sums = arrays.take(p.stride * nystrom::lanes_of<T>());
      factors = arrays.take(kTile), dots = arrays.take(kTile);
    }
  };

  Tensor zeros(IntArrayRef shape) const { return mmlaplace::zeros(shape, mixed, type_of<T>()); }
  S* tokens_of(const Tensor& result, int64_t head) const {
    return p.tokens_of(result.data_ptr<S>(), result.size(1), head);
  }
  const T* mixed_of(int64_t head) const { return mixed.data_ptr<T>() + head * p.m * p.d; }
  const T* key_sum_of(int64_t head) const { return key_sum.data_ptr<T>() + head * p.m; }

  template <class F>
  void each(int64_t parts, const F& f) const {
    nystrom::for_all<Scratch>(p, parts, f);
  }
  int64_t parts() const { return std::max(p.query_parts, p.key_parts); }

  // Sums over a part of a head: the gradients of H, of h and of the landmarks.
  int64_t part_size() const { return p.stride * p.padded + p.stride + p.m * p.d; }
  T* sum_values(int64_t head, int64_t part) const {
    return parts_state + (head * parts() + part) * part_size();
  }
  T* sum_weights(int64_t head, int64_t part) const {
    return sum_values(head, part) + p.stride * p.padded;
  }
  T* sum_marks(int64_t head, int64_t part) const { return sum_weights(head, part) + p.stride; }

  // Of a head: H, which gives way to the gradient of B^T V, h, which gives way to that of B^T 1,
  // the smallest sum, and the transposed matrix.
  int64_t head_size() const { return 2 * p.stride * p.padded + p.stride + 1; }
  Weighted<T> weighted(int64_t head) const {
    T* values = heads_state + head * head_size();
    T* sums = values + 2 * p.stride * p.padded;
    return {values, sums, sums + p.stride};
  }
  T* transposed(int64_t head) const { return weighted(head).values + p.stride * p.padded; }
  void transpose(int64_t head) const {
    nystrom::transposed_in(weighted(head).values, p.padded, p.m, p.d, transposed(head), p.stride);
  }

  void begin_pass(int64_t head, Scratch& s) const {
    p.load_marks(head, s.marks);
    std::fill(s.mark_grads, s.mark_grads + p.m * p.d * nystrom::lanes_of<T>(), T(0));
    std::fill(s.sums, s.sums + p.stride * nystrom::lanes_of<T>(), T(0));
  }

  // The gradient of a tile of the kernel, in s.dtile, to tokens and landmarks.
  void through_kernel(S* result, int64_t first, int64_t count, Scratch& s) const {
    const int64_t size = round_up(count, nystrom::lanes_of<T>());
    const T derivative = p.derivative;
    for (int64_t a = 0; a < p.m; ++a) {
      T *weights = s.dtile + a * kTile, *values = s.tile + a * kTile;
      for (int64_t t = 0; t < size; ++t) weights[t] *= derivative * values[t];
    }
    MMLAPLACE_FOR_CPU(kernel_gradient<Metric, T>(s.rows, s.marks, p.stride, count, p.m, p.d,
                                                 s.dtile, s.others, s.mark_grads));
    p.store_rows(s.others, true, result, first, count, s.tokens);
  }

  void before_queries(int64_t head) const {
    through_inverse(p, head, floor, mixed_of(head), p.d, key_sum_of(head), weighted(head));
    transpose(head);
  }

  // Over queries, with e_i = g_i / u_i and du_i = -<g_i, U_i> / u_i^2, or 0 at the smallest sum:
  //   dc_i = H e_i + h du_i,  dH = sum_i c_i e_i^T,  dh = sum_i c_i du_i.
  void query_pass(int64_t head, int64_t part, Scratch& s) const {
    const int64_t m = p.m;
    const Weighted<T> of_head = weighted(head);
    const T most = 1 / *of_head.smallest;
    S* dq_of = tokens_of(dq, head);
    begin_pass(head, s);
    nystrom::for_tiles(part, p.query_parts, p.queries, [&](int64_t first, int64_t count) {
      const int64_t size = round_up(count, nystrom::lanes_of<T>());
      p.load_rows(p.q, true, head, first, count, s.tokens, s.rows);
      query_tile<Metric>(p, s.rows, s.marks, count, of_head, s.tile, s.factors);
      p.load_rows(grad, false, head, first, count, s.tokens, s.values);
      MMLAPLACE_FOR_CPU(scale_tokens(s.factors, count, p.d, s.values));  // e_i
      p.template to_tile<false>(transposed(head), p.stride, s.values, count, m, p.d, s.dtile);
      MMLAPLACE_FOR_CPU(column_dots(s.tile, s.dtile, count, m, s.dots));
      for (int64_t t = 0; t < size; ++t) {
        s.dots[t] = s.factors[t] == most ? 0 : -s.dots[t] * s.factors[t];  // du_i
      }
      for (int64_t a = 0; a < m; ++a) {
        T* to = s.dtile + a * kTile;
        const T weight = of_head.sums[a];
        for (int64_t t = 0; t < size; ++t) to[t] += weight * s.dots[t];
      }
      p.load_tokens(grad, head, first, count, s.tokens);
      for (int64_t t = 0; t < count; ++t) {
        for (int64_t c = 0; c < p.padded; ++c) s.tokens[t * p.padded + c] *= s.factors[t];
      }
      p.add_product(s.tile, s.tokens, count, sum_values(head, part));
      MMLAPLACE_FOR_CPU(add_weighted_rows(s.tile, s.dots, count, m, s.sums));
      through_kernel(dq_of, first, count, s);
    });
    end_kernel_pass(head, part, s);
    MMLAPLACE_FOR_CPU(add_lanes(s.sums, m, sum_weights(head, part)));
  }

  // With [dH, dh]: dP = [dH, dh] [G, g]^T and [dG, dg] = P^T [dH, dh], for G = B^T V, g = B^T 1.
  void after_queries(int64_t head) const {
    const int64_t m = p.m, ld = p.stride, width = extended(p);
    T *values = sum_values(head, 0), *weights = sum_weights(head, 0);
    for (int64_t part = 1; part < p.query_parts; ++part) {
      nystrom::add(sum_values(head, part), m * p.padded, values);
      nystrom::add(sum_weights(head, part), m, weights);
    }
    Arrays<double> arrays(
        {m * width, m * width, m * width, width * ld, width * ld, ld * ld, ld * ld}, false);
    double *dresult = arrays.take(m * width), *summed = arrays.take(m * width);
    double *dsummed = arrays.take(m * width), *left = arrays.take(width * ld);
    double *right = arrays.take(width * ld), *inverse = arrays.take(ld * ld);
    double* product_of = arrays.take(ld * ld);
    extend(p, values, p.padded, weights, dresult);
    extend(p, mixed_of(head), p.d, key_sum_of(head), summed);
    nystrom::transposed_in(dresult, width, m, p.d + 1, left, ld);
    nystrom::transposed_in(summed, width, m, p.d + 1, right, ld);
    nystrom::multiply(left, ld, right, ld, m, p.d + 1, product_of);
    nystrom::matrix_out(product_of, ld, m, m, dinverse.data_ptr<T>() + head * m * m);
    nystrom::matrix_in(p.inverse_of(head), m, m, inverse, ld);
    nystrom::multiply(inverse, ld, dresult, width, m, m, dsummed);
    take_apart(p, dsummed, weighted(head).values, weighted(head).sums);
    transpose(head);
  }

  // Over keys: dv_j = dG^T b_j and db_j = dG v_j + dg.
  void key_pass(int64_t head, int64_t part, Scratch& s) const {
    const int64_t m = p.m;
    const Weighted<T> gradient = weighted(head);
    S *dk_of = tokens_of(dk, head), *dv_of = tokens_of(dv, head);
    begin_pass(head, s);
    nystrom::for_tiles(part, p.key_parts, p.keys, [&](int64_t first, int64_t count) {
      const int64_t size = round_up(count, nystrom::lanes_of<T>());
      p.load_rows(p.k, true, head, first, count, s.tokens, s.rows);
      MMLAPLACE_FOR_CPU(kernel_tile<Metric, T>(s.rows, s.marks, p.stride, count, m, p.d, p.exponent,
                                               nullptr, s.tile));
      p.load_rows(p.v, false, head, first, count, s.tokens, s.values);
      p.template to_tile<false>(gradient.values, p.padded, s.tile, count, p.d, m, s.others);
      p.store_rows(s.others, false, dv_of, first, count, s.tokens);
      for (int64_t a = 0; a < m; ++a) {
        std::fill(s.dtile + a * kTile, s.dtile + a * kTile + size, gradient.sums[a]);
      }
      p.template to_tile<true>(transposed(head), p.stride, s.values, count, m, p.d, s.dtile);
      through_kernel(dk_of, first, count, s);
    });
    end_kernel_pass(head, part, s);
  }

  void end_kernel_pass(int64_t head, int64_t part, Scratch& s) const {
    MMLAPLACE_FOR_CPU(add_lanes(s.mark_grads, p.m * p.d, sum_marks(head, part)));
  }

  void after_keys(int64_t head) const {
    T* sums = dlandmarks.data_ptr<T>() + head * p.m * p.d;
    for (int64_t part = 0; part < parts(); ++part) {
      nystrom::add(sum_marks(head, part), p.m * p.d, sums);
    }
  }
};

}  // namespace normalized_nystrom
}  // namespace mmlaplace
