// The backward of kernel_attention on a CPU. With the weights w_ij = k(q_i, k_j) / sum_j k(q_i,
// k_j) and the gradients g_i of the result:
//
//   dv_j = sum_i w_ij g_i,   d log k(q_i, k_j) = w_ij (<g_i, v_j> - <g_i, out_i>)
//
// which goes on to q_i and k_j. Names such as `dq` are gradients.
#pragma once

#include "../common/tensor.h"

#include "../common/pairwise.h"
#include "kernel_attention_forward.h"

namespace mmlaplace {
namespace exact {

template <class Metric, class T, class S>
class Backward {
 public:
  Tensor dq, dk, dv;  // (B, N or n, heads, d)

  Backward(const Problem<T, S>& problem, const Tensor& grad, const Tensor& means,
           const Tensor& log_sums)
      : p(problem),
        tiles(ceil_div(p.queries, kTile)),
        grad(view<const S>(grad)),
        means(view<const T>(means)),
        log_sums(log_sums.contiguous()),
        rows_memory(zeros({p.batch_heads, tiles, 2 * kTile}, log_sums)),
        sums_memory(zeros({p.batch_heads, p.key_parts, query_size()}, log_sums)),
        of_rows(rows_memory.data_ptr<T>()),
        query_sums(sums_memory.data_ptr<T>()) {
    const int64_t batch = grad.size(0);
    dq = empty({batch, p.queries, p.heads, p.d}, grad);
    dk = empty({batch, p.keys, p.heads, p.d}, grad);
    dv = empty({batch, p.keys, p.heads, p.d}, grad);
  }

  void run() const {
    each(tiles, [&](int64_t head, int64_t tile, Scratch& s) { before_keys(head, tile, s); });
    each(p.key_parts, [&](int64_t head, int64_t part, Scratch& s) { key_pass(head, part, s); });
    each(tiles, [&](int64_t head, int64_t tile, Scratch& s) { after_keys(head, tile, s); });
  }

 private:
  const Problem<T, S>& p;
  const int64_t tiles;  // of queries
  const View<const S> grad;
  const View<const T> means;
  const Tensor log_sums;
  const Tensor rows_memory, sums_memory;
  T *const of_rows, *const query_sums;

  // The buffers of a thread. `tile` and `dtile` are [key][query].
  struct Scratch {
    Arrays<T> arrays;
    T *rows, *keys, *values, *grads, *others, *tokens, *grad_tokens, *tile, *dtile, *lanes;
    T *dkeys, *dvalues;
    explicit Scratch(const Problem<T, S>& p)
        : arrays({p.padded * kTile, p.padded * kTile, p.padded * kTile, p.padded * kTile,
                  p.padded * kTile, p.padded * kTile, p.padded * kTile, kTile * kTile,
                  kTile * kTile, kTile * p.d * nystrom::lanes_of<T>(), kTile * p.d,
                  kTile * p.padded}) {
      rows = arrays.take(p.padded * kTile), keys = arrays.take(p.padded * kTile);
      values = arrays.take(p.padded * kTile), grads = arrays.take(p.padded * kTile);
      others = arrays.take(p.padded * kTile), tokens = arrays.take(p.padded * kTile);
      grad_tokens = arrays.take(p.padded * kTile);
      tile = arrays.take(kTile * kTile), dtile = arrays.take(kTile * kTile);
      lanes = arrays.take(kTile * p.d * nystrom::lanes_of<T>());
      dkeys = arrays.take(kTile * p.d), dvalues = arrays.take(kTile * p.padded);
    }
  };

  template <class F>
  void each(int64_t parts, const F& f) const {
    nystrom::for_all<Scratch>(p, parts, f);
  }

  int64_t count_of(int64_t tile) const { return std::min(kTile, p.queries - tile * kTile); }
  // Of a tile of queries, whole vectors of log_sums and <g_i, out_i>, with zeros beyond.
  T* log_sums_of(int64_t head, int64_t tile) const {
    return of_rows + (head * tiles + tile) * 2 * kTile;
  }
  T* dots_of(int64_t head, int64_t tile) const { return log_sums_of(head, tile) + kTile; }
  // For each part of the keys, the sums of dq as tiles [channel][query].
  int64_t query_size() const { return tiles * p.d * kTile; }
  T* query_sums_of(int64_t head, int64_t part, int64_t tile) const {
    return query_sums + (head * p.key_parts + part) * query_size() + tile * p.d * kTile;
  }
  S* tokens_of(const Tensor& result, int64_t head) const {
    return p.tokens_of(result.data_ptr<S>(), result.size(1), head);
  }

  void before_keys(int64_t head, int64_t tile, Scratch& s) const {
    const int64_t first = tile * kTile, count = count_of(tile);
    p.load_rows(grad, false, head, first, count, s.tokens, s.grads);
    MMLAPLACE_FOR_CPU(
        load_rows(means.slice(head), first, count, p.d, Rotation<T>(), s.tokens, s.rows));
    MMLAPLACE_FOR_CPU(column_dots(s.grads, s.rows, count, p.d, dots_of(head, tile)));
    std::copy_n(log_sums.data_ptr<T>() + head * p.queries + first, count, log_sums_of(head, tile));
  }

  void key_pass(int64_t head, int64_t part, Scratch& s) const {
    nystrom::for_tiles(part, p.key_parts, p.keys, [&](int64_t first, int64_t keys) {
      p.load_rows(p.k, true, head, first, keys, s.tokens, s.keys);
      p.load_rows(p.v, false, head, first, keys, s.tokens, s.values);
      std::fill_n(s.lanes, keys * p.d * nystrom::lanes_of<T>(), T(0));
      std::fill_n(s.dvalues, keys * p.padded, T(0));
      for (int64_t tile = 0; tile < tiles; ++tile) add_queries(head, part, tile, keys, s);
      store_keys(head, first, keys, s);
    });
  }

  // A tile of queries to the gradients of its queries, and of the keys and values in scratch.
  void add_queries(int64_t head, int64_t part, int64_t tile, int64_t keys, Scratch& s) const {
    const int64_t first = tile * kTile, count = count_of(tile);
    p.load_rows(p.q, true, head, first, count, s.tokens, s.rows);
    p.load_rows(grad, false, head, first, count, s.tokens, s.grads);
    p.load_tokens(grad, head, first, count, s.grad_tokens);
    MMLAPLACE_FOR_CPU(kernel_tile<Metric, T, false>(s.rows, s.keys, kTile, count, keys, p.d,
                                                    p.exponent, nullptr, s.tile));
    MMLAPLACE_FOR_CPU(powers_of_weights(log_sums_of(head, tile), count, keys, s.tile));
    MMLAPLACE_FOR_CPU(product<true, true>(s.tile, 0, s.grad_tokens, p.padded, keys,
                                          p.padded / nystrom::lanes_of<T>(), count, s.dvalues,
                                          p.padded));
    p.template to_tile<false>(s.values, kTile, s.grads, count, keys, p.d, s.dtile);
    MMLAPLACE_FOR_CPU(weigh(s.tile, dots_of(head, tile), p.derivative, count, keys, s.dtile));
    MMLAPLACE_FOR_CPU(kernel_gradient<Metric, T>(s.rows, s.keys, kTile, count, keys, p.d, s.dtile,
                                                 s.others, s.lanes));
    nystrom::add(s.others, p.d * kTile, query_sums_of(head, part, tile));
  }

  void store_keys(int64_t head, int64_t first, int64_t keys, Scratch& s) const {
    std::fill_n(s.dkeys, keys * p.d, T(0));
    MMLAPLACE_FOR_CPU(add_lanes(s.lanes, keys * p.d, s.dkeys));
    for (int64_t key = 0; key < keys; ++key) {
      S* to = tokens_of(dv, head) + (first + key) * p.token_stride();
      for (int64_t c = 0; c < p.d; ++c) {
        s.others[c * kTile + key] = s.dkeys[key * p.d + c];
        to[c] = static_cast<S>(s.dvalues[key * p.padded + c]);
      }
    }
    p.store_rows(s.others, true, tokens_of(dk, head), first, keys, s.tokens);
  }

  void after_keys(int64_t head, int64_t tile, Scratch& s) const {
    T* sums = query_sums_of(head, 0, tile);
    for (int64_t part = 1; part < p.key_parts; ++part) {
      nystrom::add(query_sums_of(head, part, tile), p.d * kTile, sums);
    }
    std::copy_n(sums, p.d * kTile, s.others);  // with room for whole vectors of channels
    p.store_rows(s.others, true, tokens_of(dq, head), tile * kTile, count_of(tile), s.tokens);
  }
};

}  // namespace exact
}  // namespace mmlaplace
