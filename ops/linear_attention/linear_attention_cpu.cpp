// The formulas, head by head and token by token, with sums in fp64. The Python function calls this
// for backend='native' alone, as torch's products are faster on a CPU.
#include "../common/tensor.h"

#include <vector>

#include "linear_attention.h"

namespace mmlaplace {
namespace linear {
namespace {

using Row = std::vector<double>;

template <class S>
Row read(const Slice<const S>& tokens, int64_t token, int64_t dims, Features features) {
  Row row(dims);
  for (int64_t c = 0; c < dims; ++c) {
    row[c] = feature(features, static_cast<double>(tokens.at(token, c)));
  }
  return row;
}

// One head of the tokens, gradients and results. A numerator that is not given is that of q or k.
template <class S>
struct Head {
  const Sizes& sizes;
  const Inputs& inputs;
  int64_t head;
  Streams streams{inputs.streams, static_cast<int>(sizes.features), static_cast<int>(sizes.dims)};

  Row features(const Tensor& tokens, int64_t i) const {
    return read(slice<const S>(tokens, head), i, sizes.features, inputs.features);
  }
  Row top(const OptionalTensor& top, const Row& own, int64_t i) const {
    if (!top.has_value()) return own;
    return read(slice<const S>(*top, head), i, sizes.features, Features::none);
  }
  Row values(const Tensor& tokens, int64_t i) const {
    return read(slice<const S>(tokens, head), i, sizes.dims, Features::none);
  }
  template <class F>
  void write(const Tensor& by_head, int64_t i, int64_t dims, const F& f) const {
    const Slice<S> to = slice<S>(by_head, head);
    for (int64_t c = 0; c < dims; ++c) to.at(i, c) = static_cast<S>(f(c));
  }

  // The place of a query's feature r and a channel c in the sums. Channel d is the mean of the
  // keys.
  int64_t at(int64_t r, int64_t c, int stream) const {
    return streams.met(static_cast<int>(r), stream) * (sizes.dims + 1) + c;
  }
  int64_t at(int64_t r, int64_t c) const { return at(r, c, streams.of(static_cast<int>(c))); }

  Row key_sums(const Tensor& k, const Tensor& v) const {
    Row sums(sizes.features * (sizes.dims + 1));
    for (int64_t j = 0; j < sizes.keys; ++j) {
      const Row key = features(k, j), upper = top(inputs.top_k, key, j), value = values(v, j);
      for (int64_t r = 0; r < sizes.features; ++r) {
        double* to = sums.data() + r * (sizes.dims + 1);
        for (int64_t c = 0; c < sizes.dims; ++c) to[c] += upper[r] * value[c];
        to[sizes.dims] += key[r];
      }
    }
    for (double& sum : sums) sum /= static_cast<double>(sizes.keys);
    return sums;
  }

  double normalizer(const Row& query, const Row& sums, int stream) const {
    double sum = inputs.eps;
    for (int64_t r = 0; r < sizes.features; ++r) sum += query[r] * sums[at(r, sizes.dims, stream)];
    return sum;
  }
  // The result of a query.
  Row attend(const Row& query, const Row& upper, const Row& sums) const {
    Row out(sizes.dims);
    for (int64_t r = 0; r < sizes.features; ++r) {
      for (int64_t c = 0; c < sizes.dims; ++c) out[c] += upper[r] * sums[at(r, c)];
    }
    const double normalizers[] = {normalizer(query, sums, 0), normalizer(query, sums, 1)};
    for (int64_t c = 0; c < sizes.dims; ++c) out[c] /= normalizers[streams.of(static_cast<int>(c))];
    return out;
  }

  // Writes the gradients of the queries, and returns that of the sums.
  Row query_gradients(const Tensor& grad, const Tensor& q, const Row& sums, const Tensor& dq,
                      const Tensor& dtop) const {
    Row dsums(sums.size());
    for (int64_t i = 0; i < sizes.queries; ++i) {
      const Row query = features(q, i), upper = top(inputs.top_q, query, i);
      const Row out = attend(query, upper, sums);
      Row change = values(grad, i), through(sizes.features), to_top(sizes.features);
      double slopes[2] = {};
      for (int64_t c = 0; c < sizes.dims; ++c) {
        const int stream = streams.of(static_cast<int>(c));
        change[c] /= normalizer(query, sums, stream);
        slopes[stream] -= change[c] * out[c];
      }
      for (int64_t r = 0; r < sizes.features; ++r) {
        for (int64_t c = 0; c < sizes.dims; ++c) {
          to_top[r] += change[c] * sums[at(r, c)];
          dsums[at(r, c)] += upper[r] * change[c];
        }
        for (int stream = 0; stream < inputs.streams; ++stream) {
          const int64_t mean = at(r, sizes.dims, stream);
          through[r] += slopes[stream] * sums[mean];
          dsums[mean] += slopes[stream] * query[r];
        }
      }
      finish(query, to_top, through, inputs.top_q, i, dq, dtop);
    }
    return dsums;
  }

  void key_gradients(const Tensor& k, const Tensor& v, const Row& dsums, const Tensor& dk,
                     const Tensor& dtop, const Tensor& dv) const {
    const double share = 1 / static_cast<double>(sizes.keys);
    for (int64_t j = 0; j < sizes.keys; ++j) {
      const Row key = features(k, j), upper = top(inputs.top_k, key, j), value = values(v, j);
      Row to_top(sizes.features), mean(sizes.features), to_value(sizes.dims);
      for (int64_t r = 0; r < sizes.features; ++r) {
        const double* from = dsums.data() + r * (sizes.dims + 1);
        for (int64_t c = 0; c < sizes.dims; ++c) {
          to_top[r] += share * from[c] * value[c];
          to_value[c] += share * from[c] * upper[r];
        }
        mean[r] = share * from[sizes.dims];
      }
      finish(key, to_top, mean, inputs.top_k, j, dk, dtop);
      write(dv, j, sizes.dims, [&](int64_t c) { return to_value[c]; });
    }
  }

  // The gradients of a token, from that of its numerator and that through the normaliser.
  void finish(const Row& own, const Row& to_top, const Row& through, const OptionalTensor& top,
              int64_t i, const Tensor& dtokens, const Tensor& dtop) const {
    const bool apart = top.has_value();
    write(dtokens, i, sizes.features, [&](int64_t r) {
      return slope(inputs.features, own[r]) * (through[r] + (apart ? 0.0 : to_top[r]));
    });
    if (apart) write(dtop, i, sizes.features, [&](int64_t r) { return to_top[r]; });
  }
};

template <class S, class F>
void for_heads(const Sizes& sizes, const Inputs& inputs, const F& f) {
  host::parallel_for(sizes.batch_heads(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) f(Head<S>{sizes, inputs, head});
  });
}

Results forward(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& top_q,
                const OptionalTensor& top_k, double eps, StringView features, int64_t streams) {
  const Inputs inputs = inputs_of(top_q, top_k, eps, features, streams);
  const Sizes sizes = check(q, k, v, inputs);
  const Tensor out = by_head(tokens_like(q, sizes.dims));
  const Tensor kept =
      empty({sizes.batch, sizes.heads, sizes.features, sizes.dims + 1}, q, wide(q.scalar_type()));
  MMLAPLACE_DISPATCH(q.scalar_type(), "linear_attention", [&] {
    using T = Wide<scalar_t>;
    for_heads<scalar_t>(sizes, inputs, [&](const Head<scalar_t>& head) {
      const Row sums = head.key_sums(k, v);
      std::copy(sums.begin(), sums.end(), kept.data_ptr<T>() + head.head * sums.size());
      for (int64_t i = 0; i < sizes.queries; ++i) {
        const Row query = head.features(q, i);
        const Row row = head.attend(query, head.top(inputs.top_q, query, i), sums);
        head.write(out, i, sizes.dims, [&](int64_t c) { return row[c]; });
      }
    });
  });
  return {out, kept};
}

Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                   const OptionalTensor& top_q, const OptionalTensor& top_k, const Tensor& sums,
                   double eps, StringView features, int64_t streams) {
  const Inputs inputs = inputs_of(top_q, top_k, eps, features, streams);
  const Sizes sizes = check(q, k, v, inputs);
  check_gradient(sizes, grad, q, sums);
  const int64_t f = sizes.features, tops = top_q.has_value() ? f : 0;
  const Tensor dq = by_head(tokens_like(q, f)), dk = by_head(tokens_like(k, f));
  const Tensor dv = by_head(tokens_like(v, sizes.dims));
  const Tensor dtop_q = by_head(tokens_like(q, tops)), dtop_k = by_head(tokens_like(k, tops));
  const Tensor kept = sums.contiguous();
  MMLAPLACE_DISPATCH(q.scalar_type(), "linear_attention", [&] {
    using T = Wide<scalar_t>;
    for_heads<scalar_t>(sizes, inputs, [&](const Head<scalar_t>& head) {
      const int64_t size = f * (sizes.dims + 1);
      const T* from = kept.data_ptr<T>() + head.head * size;
      const Row dsums = head.query_gradients(grad, q, Row(from, from + size), dq, dtop_q);
      head.key_gradients(k, v, dsums, dk, dtop_k, dv);
    });
  });
  return {dq, dk, dv, dtop_q, dtop_k};
}

}  // namespace
}  // namespace linear
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("linear_attention", MMLAPLACE_KERNEL(mmlaplace::linear::forward));
  library.impl("_linear_attention_backward", MMLAPLACE_KERNEL(mmlaplace::linear::backward));
}
