// The backward passes of nystrom_attention on a CPU, see docs/maths.md. Names such as `dmixed` are
// gradients.
#pragma once

#include "../common/tensor.h"

#include "../common/pairwise.h"
#include "nystrom_attention_cpu.h"

namespace mmlaplace {
namespace nystrom {

template <class Metric, class T, class S>
class Backward {
 public:
  Tensor dq, dk, dv;                    // (B, N or n, heads, d)
  Tensor dlandmarks, dinverse, dscale;  // in T

  Backward(const Problem<T, S>& problem, const Tensor& grad_tokens, const Tensor& mean,
           const Tensor& covariance, const Tensor& mixed)
      : p(problem),
        grad(view<const S>(grad_tokens)),
        mean(mean),
        covariance(covariance),
        mixed(mixed) {
    const int64_t batch = grad_tokens.size(0);
    dq = empty({batch, p.queries, p.heads, p.d}, grad_tokens);
    dk = empty({batch, p.keys, p.heads, p.d}, grad_tokens);
    dv = empty({batch, p.keys, p.heads, p.d}, grad_tokens);
    dlandmarks = zeros({batch, p.heads, p.m, p.d});
    dinverse = zeros({batch, p.heads, p.m, p.m});
    dscale = zeros({batch, p.heads});
    parts_memory = zeros({p.batch_heads * parts(), part_size_of()});
    heads_memory = zeros({p.batch_heads, head_size()});
    parts_state = parts_memory.template data_ptr<T>();
    heads_state = heads_memory.template data_ptr<T>();
    means = mean.data_ptr<T>();
  }

  void run() const {
    if (parts() == 1) {  // a head at a time
      for_all<Scratch>(p, 1, [&](int64_t head, int64_t part, Scratch& s) {
        output_pass(head, part, s), after_outputs(head);
        key_pass(head, part, s), after_keys(head);
        query_pass(head, part, s), after_queries(head);
      });
      return;
    }
    each(p.query_parts,
         [&](int64_t head, int64_t part, Scratch& s) { output_pass(head, part, s); });
    each(1, [&](int64_t head, int64_t, Scratch&) { after_outputs(head); });
    each(p.key_parts, [&](int64_t head, int64_t part, Scratch& s) { key_pass(head, part, s); });
    each(1, [&](int64_t head, int64_t, Scratch&) { after_keys(head); });
    each(p.query_parts, [&](int64_t head, int64_t part, Scratch& s) { query_pass(head, part, s); });
    each(1, [&](int64_t head, int64_t, Scratch&) { after_queries(head); });
  }

 private:
  const Problem<T, S>& p;
  const View<const S> grad;
  const Tensor mean, covariance, mixed;
  Tensor parts_memory, heads_memory;
  T *parts_state, *heads_state;
  const T* means;

  // The buffers of a thread. `tile` and what follows it are [landmark][token].
  struct Scratch {
    Arrays<T> arrays;
    T *marks, *mark_grads, *rows, *values, *others, *tokens, *tile, *form, *dtile, *copy;
    T *variance, *dots;
    explicit Scratch(const Problem<T, S>& p)
        : arrays({p.padded * p.stride, p.m * p.d * lanes_of<T>(), p.padded * kTile,
                  p.padded * kTile, p.padded * kTile, p.padded * kTile, p.stride * kTile,
                  p.stride * kTile, p.stride * kTile, p.stride * kTile, kTile, kTile}) {
      marks = arrays.take(p.padded * p.stride);
      mark_grads = arrays.take(p.m * p.d * lanes_of<T>());
      rows = arrays.take(p.padded * kTile), values = arrays.take(p.padded * kTile);
      others = arrays.take(p.padded * kTile), tokens = arrays.take(p.padded * kTile);
      tile = arrays.take(p.stride * kTile), form = arrays.take(p.stride * kTile);
      dtile = arrays.take(p.stride * kTile), copy = arrays.take(p.stride * kTile);
      variance = arrays.take(kTile), dots = arrays.take(kTile);
    }
  };

  Tensor zeros(IntArrayRef shape) const { return mmlaplace::zeros(shape, mixed, type_of<T>()); }
  S* tokens_of(const Tensor& result, int64_t head) const {
    return p.tokens_of(result.data_ptr<S>(), result.size(1), head);
  }

  template <class F>
  void each(int64_t parts, const F& f) const {
    for_all<Scratch>(p, parts, f);
  }
  int64_t parts() const { return std::max(p.query_parts, p.key_parts); }

  // Sums over a part of a head: of (c_i - mean) g_i^T and g_i, of dvar_j b_j b_j^T, and the
  // gradient of the landmarks.
  int64_t part_size_of() const {
    return (p.stride + 1) * p.padded + p.stride * p.stride + p.m * p.d;
  }
  T* sum_mixed(int64_t head, int64_t part) const {
    return parts_state + (head * parts() + part) * part_size_of();
  }
  T* sum_grad(int64_t head, int64_t part) const {
    return sum_mixed(head, part) + p.stride * p.padded;
  }
  T* sum_form(int64_t head, int64_t part) const { return sum_grad(head, part) + p.padded; }
  T* sum_marks(int64_t head, int64_t part) const {
    return sum_form(head, part) + p.stride * p.stride;
  }

  // Matrices of a head: M = P^T Cov P and later 2 dCov / N; the gradient of sum_j r_j b_j v_j^T,
  // (m, d) and transposed; s P sum_j r_j b_j v_j^T, transposed; and the gradient of the mean over
  // N.
  int64_t head_size() const {
    return p.stride * p.stride + p.stride * p.padded + 2 * p.padded * p.stride + p.stride;
  }
  T* form(int64_t head) const { return heads_state + head * head_size(); }
  T* dmixed(int64_t head) const { return form(head) + p.stride * p.stride; }
  T* dmixed_transposed(int64_t head) const { return dmixed(head) + p.stride * p.padded; }
  T* result_transposed(int64_t head) const { return dmixed_transposed(head) + p.padded * p.stride; }
  T* dmean(int64_t head) const { return result_transposed(head) + p.padded * p.stride; }

  void kernel(const View<const S>& tokens, int64_t head, int64_t first, int64_t count,
              const T* shift, Scratch& s) const {
    p.load_rows(tokens, true, head, first, count, s.tokens, s.rows);
    MMLAPLACE_FOR_CPU(kernel_tile<Metric, T>(s.rows, s.marks, p.stride, count, p.m, p.d, p.exponent,
                                             shift, s.tile));
  }

  // The gradient of a tile of the kernel, in s.dtile, to tokens and landmarks.
  void through_kernel(S* result, int64_t first, int64_t count, Scratch& s) const {
    const int64_t size = round_up(count, lanes_of<T>());
    const T derivative = p.derivative;
    for (int64_t a = 0; a < p.m; ++a) {
      T *weights = s.dtile + a * kTile, *values = s.tile + a * kTile;
      for (int64_t t = 0; t < size; ++t) weights[t] *= derivative * values[t];
    }
    MMLAPLACE_FOR_CPU(kernel_gradient<Metric, T>(s.rows, s.marks, p.stride, count, p.m, p.d,
                                                 s.dtile, s.others, s.mark_grads));
    p.store_rows(s.others, true, result, first, count, s.tokens);
  }

  void begin_kernel_pass(int64_t head, Scratch& s) const {
    p.load_marks(head, s.marks);
    std::fill(s.mark_grads, s.mark_grads + p.m * p.d * lanes_of<T>(), T(0));
  }
  void end_kernel_pass(int64_t head, int64_t part, Scratch& s) const {
    MMLAPLACE_FOR_CPU(add_lanes(s.mark_grads, p.m * p.d, sum_marks(head, part)));
  }

  // Over queries: sums of (c_i - mean) g_i^T and g_i.
  void output_pass(int64_t head, int64_t part, Scratch& s) const {
    const T* shift = p.whitened ? means + head * p.m : nullptr;
    p.load_marks(head, s.marks);
    for_tiles(part, p.query_parts, p.queries, [&](int64_t first, int64_t count) {
      kernel(p.q, head, first, count, shift, s);
      p.load_tokens(grad, head, first, count, s.tokens);
      p.add_product(s.tile, s.tokens, count, sum_mixed(head, part));
      if (p.whitened) add_tokens(s.tokens, count, p.padded, sum_grad(head, part));
    });
  }

  // With H = P G, G = sum_j r_j b_j v_j^T, D = sum_i (c_i - mean) g_i^T:
  //   ds = <D, H>,  dH = s D,  dP = dH G^T,  dG = P^T dH,  dmean = -s H sum_i g_i.
  void after_outputs(int64_t head) const {
    const int64_t m = p.m, d = p.d, ld = p.stride, padded = p.padded;
    T *sums = sum_mixed(head, 0), *grads = sum_grad(head, 0);
    for (int64_t part = 1; part < p.query_parts; ++part) {
      add(sum_mixed(head, part), m * padded, sums);
      add(sum_grad(head, part), padded, grads);
    }
    Arrays<double> arrays(
        {ld * ld, ld * ld, ld * ld, m * padded, m * padded, m * padded, padded * ld, padded * ld},
        false);
    double *inverse = arrays.take(ld * ld), *matrix = arrays.take(ld * ld);
    double *half = arrays.take(ld * ld), *summed = arrays.take(m * padded);
    double *result = arrays.take(m * padded), *grad_of = arrays.take(m * padded);
    double *left = arrays.take(padded * ld), *right = arrays.take(padded * ld);
    matrix_in(p.inverse_of(head), m, m, inverse, ld);
    transposed_in(p.inverse_of(head), m, m, m, matrix, ld);
    matrix_in(mixed.data_ptr<T>() + head * m * d, m, d, summed, padded);
    matrix_in(sums, m, padded, grad_of, padded);
    multiply(matrix, ld, summed, padded, m, m, result);
    const T scale = p.scale_of(head);
    double dscale_of = 0;
    for (int64_t i = 0; i < m * padded; ++i) {
      dscale_of += grad_of[i] * result[i];
      grad_of[i] *= scale;
      result[i] *= scale;
    }
    dscale.data_ptr<T>()[head] = static_cast<T>(dscale_of);
    transposed_in(result, padded, m, d, result_transposed(head), ld);
    transposed_in(grad_of, padded, m, d, left, ld);
    transposed_in(summed, padded, m, d, right, ld);
    multiply(left, ld, right, ld, m, d, half);
    matrix_out(half, ld, m, m, dinverse.data_ptr<T>() + head * m * m);
    multiply(inverse, ld, grad_of, padded, m, m, summed);
    matrix_in(summed, m, padded, dmixed(head), padded);
    transposed_in(summed, padded, m, d, dmixed_transposed(head), ld);
    if (!p.whitened) return;
    T* dmean_of = dmean(head);
    for (int64_t a = 0; a < m; ++a) {
      double sum = 0;
      for (int64_t c = 0; c < d; ++c) sum += result[a * padded + c] * grads[c];
      dmean_of[a] = static_cast<T>(-sum / p.queries);
    }
    matrix_in(covariance.data_ptr<T>() + head * m * m, m, m, matrix, ld);
    multiply(matrix, ld, inverse, ld, m, m, half);
    multiply(inverse, ld, half, ld, m, m, matrix);
    matrix_in(matrix, m, ld, form(head), ld);
  }

  // Over keys, with t_j = dG^T b_j: dv_j = r_j t_j + mean of g, dr_j = t_j^T v_j,
  // dvar_j = -r_j^3 dr_j / 2, db_j = dG r_j v_j + 2 dvar_j M b_j.
  void key_pass(int64_t head, int64_t part, Scratch& s) const {
    const int64_t m = p.m, d = p.d, ld = p.stride;
    const T eps = p.eps, *grads = sum_grad(head, 0);
    S *dk_of = tokens_of(dk, head), *dv_of = tokens_of(dv, head);
    begin_kernel_pass(head, s);
    for_tiles(part, p.key_parts, p.keys, [&](int64_t first, int64_t count) {
      const int64_t size = round_up(count, lanes_of<T>());
      kernel(p.k, head, first, count, nullptr, s);
      p.load_rows(p.v, false, head, first, count, s.tokens, s.values);
      p.template to_tile<false>(dmixed(head), p.padded, s.tile, count, d, m, s.others);  // t_j
      if (p.whitened) {
        p.template to_tile<false>(form(head), ld, s.tile, count, m, m, s.form);  // M b_j
        MMLAPLACE_FOR_CPU(column_dots(s.tile, s.form, count, m, s.variance));
        MMLAPLACE_FOR_CPU(column_dots(s.others, s.values, count, d, s.dots));
        T *factors = s.variance, *dots = s.dots;
        std::fill(factors + count, factors + size, T(1));  // or 0 times infinity for a tiny eps
        for (int64_t t = 0; t < size; ++t) {
          const bool negative = factors[t] < 0;  // by rounding; nothing goes through it
          const T factor = 1 / std::sqrt((negative ? 0 : factors[t]) + eps);
          dots[t] *= negative ? 0 : -factor * factor * factor / 2;
          factors[t] = factor;
        }
        for (int64_t c = 0; c < d; ++c) {
          T *others = s.others + c * kTile, *values = s.values + c * kTile;
          const T mean_grad = grads[c] / p.keys;
          for (int64_t t = 0; t < size; ++t) {
            others[t] = others[t] * factors[t] + mean_grad;
            values[t] *= factors[t];
          }
        }
      }
      p.store_rows(s.others, false, dv_of, first, count, s.tokens);
      if (p.whitened) {
        MMLAPLACE_FOR_CPU(
            add_second_moment<T>(s.tile, s.dots, count, m, ld, s.copy, sum_form(head, part)));
        for (int64_t a = 0; a < m; ++a) {
          T *to = s.dtile + a * kTile, *from = s.form + a * kTile, *dots = s.dots;
          for (int64_t t = 0; t < size; ++t) to[t] = 2 * dots[t] * from[t];
        }
        p.template to_tile<true>(dmixed_transposed(head), ld, s.values, count, m, d, s.dtile);
      } else {
        p.template to_tile<false>(dmixed_transposed(head), ld, s.values, count, m, d, s.dtile);
      }
      through_kernel(dk_of, first, count, s);
    });
    end_kernel_pass(head, part, s);
    if (p.whitened) MMLAPLACE_FOR_CPU(mirror(sum_form(head, part), m, ld));
  }

  // With dM = sum_j dvar_j b_j b_j^T: dCov = P dM P^T, dP += 2 Cov P dM.
  void after_keys(int64_t head) const {
    if (!p.whitened) return;
    const int64_t m = p.m, ld = p.stride;
    T* dform = sum_form(head, 0);
    for (int64_t part = 1; part < p.key_parts; ++part) {
      add(sum_form(head, part), m * ld, dform);
    }
    Arrays<double> arrays({ld * ld, ld * ld, ld * ld, ld * ld}, false);
    double *transposed = arrays.take(ld * ld), *matrix = arrays.take(ld * ld);
    double *half = arrays.take(ld * ld), *result = arrays.take(ld * ld);
    transposed_in(p.inverse_of(head), m, m, m, transposed, ld);
    matrix_in(dform, m, ld, matrix, ld);
    multiply(transposed, ld, matrix, ld, m, m, half);  // P dM
    matrix_in(covariance.data_ptr<T>() + head * m * m, m, m, matrix, ld);
    multiply(matrix, ld, half, ld, m, m, result);
    T* dinverse_of = dinverse.data_ptr<T>() + head * m * m;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < m; ++j) {
        dinverse_of[i * m + j] += static_cast<T>(2 * result[i * ld + j]);
      }
    }
    transposed_in(half, ld, m, m, matrix, ld);  // (P dM)^T
    multiply(matrix, ld, transposed, ld, m, m, result);
    T* dcov = form(head);
    for (int64_t i = 0; i < m * ld; ++i) dcov[i] = static_cast<T>(2 * result[i] / p.queries);
  }

  // Over queries: dc_i = s H g_i + dmean / N + 2 dCov (c_i - mean) / N.
  void query_pass(int64_t head, int64_t part, Scratch& s) const {
    const int64_t m = p.m, ld = p.stride;
    const T *means_of = means + head * m, *dmean_of = dmean(head);
    S* dq_of = tokens_of(dq, head);
    begin_kernel_pass(head, s);
    for_tiles(part, p.query_parts, p.queries, [&](int64_t first, int64_t count) {
      const int64_t size = round_up(count, lanes_of<T>());
      kernel(p.q, head, first, count, nullptr, s);
      p.load_rows(grad, false, head, first, count, s.tokens, s.values);
      if (p.whitened) {
        for (int64_t a = 0; a < m; ++a) {
          const T mean_of = means_of[a], start = dmean_of[a];
          const T* values = s.tile + a * kTile;
          T *centered = s.form + a * kTile, *to = s.dtile + a * kTile;
          for (int64_t t = 0; t < size; ++t) {
            centered[t] = values[t] - mean_of;
            to[t] = start;
          }
        }
        p.template to_tile<true>(form(head), ld, s.form, count, m, m, s.dtile);  // 2 dCov / N
        p.template to_tile<true>(result_transposed(head), ld, s.values, count, m, p.d, s.dtile);
      } else {
        p.template to_tile<false>(result_transposed(head), ld, s.values, count, m, p.d, s.dtile);
      }
      through_kernel(dq_of, first, count, s);
    });
    end_kernel_pass(head, part, s);
  }

  void after_queries(int64_t head) const {
    T* sums = dlandmarks.data_ptr<T>() + head * p.m * p.d;
    for (int64_t part = 0; part < parts(); ++part) add(sum_marks(head, part), p.m * p.d, sums);
  }
};

}  // namespace nystrom
}  // namespace mmlaplace
