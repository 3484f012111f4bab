// The operator of attentions whose weights are products of features, PolaFormer's among them.
#include <algorithm>

#include "../common/cpu/arrays.h"
#include "../common/cpu/rotation.h"
#include "../common/strided.h"

#define MMLAPLACE_KERNELS "../../operators/linear_attention_vector.h"
#include "../common/cpu/cpu_dispatch.h"

#include "operators.h"

namespace mmlaplace {
namespace operators {
namespace {

// Keys whose sums are added one after another. Then sums do not depend on the number of threads.
constexpr int64_t kPart = 8 * kTile;

// Tokens (B, tokens, heads, d) as (B, heads, tokens, d).
View<const float> view(const Input& tokens) {
  const int64_t rows = tokens.shape[1], heads = tokens.shape[2], dims = tokens.shape[3];
  return {tokens.data, {rows * heads * dims, dims, heads * dims, 1}, heads};
}

// A call, with the buffers of a thread in `Scratch`.
class Call {
 public:
  Call(const LinearAttention& op, const Inputs& inputs)
      : op_(op),
        inputs_(inputs),
        powers_(op.features == "powers"),
        tops_(inputs[3].data != nullptr),
        batch_(inputs[0].shape[0]),
        heads_(inputs[0].shape[2]),
        queries_(inputs[0].shape[1]),
        keys_(inputs[1].shape[1]),
        dims_(inputs[0].shape[3]),
        rows_(powers_ ? 2 * dims_ : dims_),
        padded_(round_up(dims_, lanes())),
        stride_(round_up(dims_ + 2, lanes())) {}

  void run(float* out) const {
    const int64_t all = batch_ * heads_, parts = ceil_div(keys_, kPart), size = rows_ * stride_;
    Arrays<float> memory({all * parts * size, all * size});
    float *const of_parts = memory.take(all * parts * size), *const sums = memory.take(all * size);
    host::parallel_for(all * parts, 1, [&](int64_t begin, int64_t end) {
      Scratch scratch(*this);
      for (int64_t index = begin; index < end; ++index) {
        add_keys(index / parts, index % parts * kPart, scratch, of_parts + index * size);
      }
    });
    for (int64_t head = 0; head < all; ++head) {
      join(of_parts + head * parts * size, parts, sums + head * size);
    }
    const int64_t tiles = ceil_div(queries_, kTile);
    host::parallel_for(all * tiles, 4, [&](int64_t begin, int64_t end) {
      Scratch scratch(*this);
      for (int64_t index = begin; index < end; ++index) {
        const int64_t head = index / tiles;
        attend(head, index % tiles * kTile, sums + head * size, scratch, out);
      }
    });
  }

 private:
  const LinearAttention& op_;
  const Inputs& inputs_;
  const bool powers_, tops_;
  // rows_ is the number of features. Sums are (rows_, stride_), with values in the first dims_
  // columns and the normalisers of both streams in the next two.
  const int64_t batch_, heads_, queries_, keys_, dims_, rows_, padded_, stride_;

  static int64_t lanes() { return vector_bytes() / static_cast<int64_t>(sizeof(float)); }

  struct Scratch {
    Arrays<float> arrays;
    float *rows, *copy, *features, *tops, *values, *ones, *result;
    explicit Scratch(const Call& call)
        : arrays({call.padded_ * kTile, call.padded_ * kTile, 2 * call.padded_ * kTile,
                  call.padded_ * kTile, call.stride_ * kTile, call.stride_ * kTile,
                  (call.padded_ + 2) * kTile}) {
      rows = arrays.take(call.padded_ * kTile), copy = arrays.take(call.padded_ * kTile);
      features = arrays.take(2 * call.padded_ * kTile), tops = arrays.take(call.padded_ * kTile);
      values = arrays.take(call.stride_ * kTile), ones = arrays.take(call.stride_ * kTile);
      result = arrays.take((call.padded_ + 2) * kTile);
      for (int64_t t = 0; t < kTile; ++t) ones[t * call.stride_ + call.dims_] = 1;
    }
  };

  void load(const Input& tokens, int64_t head, int64_t first, int64_t count, Scratch& s,
            float* rows) const {
    MMLAPLACE_FOR_CPU(
        load_rows(view(tokens).slice(head), first, count, dims_, Rotation<float>{}, s.copy, rows));
  }

  // The features of a tile of queries or keys, and their numerators, which are mostly the same.
  const float* features(const Input& tokens, const Input& top, int64_t head, int64_t first,
                        int64_t count, Scratch& s) const {
    load(tokens, head, first, count, s, powers_ ? s.rows : s.features);
    if (powers_) {
      const int64_t channels = head % heads_ * dims_;
      MMLAPLACE_FOR_CPU(feature_rows(s.rows, count, dims_, inputs_[5].data + channels,
                                     inputs_[6].data + channels, s.features));
    } else if (op_.features != "none") {
      MMLAPLACE_FOR_CPU(positive_rows(op_.features == "elu_plus_one", count, dims_, s.features));
    }
    if (!tops_) return s.features;
    load(top, head, first, count, s, s.tops);
    return s.tops;
  }

  void add_keys(int64_t head, int64_t begin, Scratch& s, float* sums) const {
    const int64_t end = std::min(keys_, begin + kPart);
    const Slice<const float> values = view(inputs_[2]).slice(head);
    for (int64_t first = begin; first < end; first += kTile) {
      const int64_t count = std::min(kTile, end - first);
      const float* tops = features(inputs_[1], inputs_[4], head, first, count, s);
      for (int64_t t = 0; t < count; ++t) {
        const float* row = values.row(first + t);
        std::copy(row, row + dims_, s.values + t * stride_);
        s.values[t * stride_ + dims_] = tops_ ? 0 : 1;
      }
      MMLAPLACE_FOR_CPU(add_products(tops, count, rows_, s.values, stride_, sums));
      if (tops_) {
        MMLAPLACE_FOR_CPU(add_products(s.features, count, rows_, s.ones, stride_, sums));
      }
    }
  }

  // The means of the parts' sums. In the second stream, halves of the features are exchanged.
  void join(float* parts, int64_t count, float* sums) const {
    const int64_t size = rows_ * stride_, half = rows_ / 2;
    for (int64_t part = 1; part < count; ++part) {
      for (int64_t i = 0; i < size; ++i) parts[i] += parts[part * size + i];
    }
    const float share = 1.0f / static_cast<float>(keys_);
    const int64_t second = op_.streams == 2 ? (dims_ + 1) / 2 : dims_;
    for (int64_t r = 0; r < rows_; ++r) {
      const float *own = parts + r * stride_, *other = parts + (r + half) % rows_ * stride_;
      float* to = sums + r * stride_;
      for (int64_t c = 0; c < dims_; ++c) to[c] = share * (c < second ? own[c] : other[c]);
      to[dims_] = share * own[dims_], to[dims_ + 1] = share * other[dims_];
    }
  }

  void attend(int64_t head, int64_t first, const float* sums, Scratch& s, float* out) const {
    const int64_t count = std::min(kTile, queries_ - first), streams = op_.streams;
    const float* tops = features(inputs_[0], inputs_[3], head, first, count, s);
    float* normalizers = s.result + dims_ * kTile;
    if (tops_) {
      MMLAPLACE_FOR_CPU(products_of_queries(sums, stride_, tops, count, dims_, rows_, s.result));
      MMLAPLACE_FOR_CPU(products_of_queries(sums + dims_, stride_, s.features, count, streams,
                                            rows_, normalizers));
    } else {
      MMLAPLACE_FOR_CPU(
          products_of_queries(sums, stride_, tops, count, dims_ + streams, rows_, s.result));
    }
    const int64_t second = streams == 2 ? (dims_ + 1) / 2 : dims_;
    MMLAPLACE_FOR_CPU(divide_rows(count, 0, second, normalizers, op_.eps, s.result));
    MMLAPLACE_FOR_CPU(divide_rows(count, second, dims_, normalizers + kTile, op_.eps, s.result));
    float* target = out + ((head / heads_ * queries_ + first) * heads_ + head % heads_) * dims_;
    MMLAPLACE_FOR_CPU(store_rows(s.result, first, count, dims_, Rotation<float>{}, s.copy, target,
                                 heads_ * dims_));
  }
};

}  // namespace

void LinearAttention::compute(const Inputs& inputs, float* out) const {
  const Shape &q = inputs[0].shape, &k = inputs[1].shape;
  if (q.size() != 4 || k.size() != 4) {
    throw std::invalid_argument(
        text(name, ": q and k must have four axes, got ", text(q), " and ", text(k)));
  }
  check(name, "k", k, {q[0], k[1], q[2], q[3]});
  check(name, "v", inputs[2].shape, k);
  if (features != "none" && features != "relu" && features != "elu_plus_one" &&
      features != "powers") {
    throw std::invalid_argument(
        text(name, ": features must be none, relu, elu_plus_one or powers, got ", features));
  }
  if (streams != 1 && streams != 2) {
    throw std::invalid_argument(text(name, ": streams must be 1 or 2, got ", streams));
  }
  const bool powers = features == "powers";
  if (streams == 2 && !powers && q[3] % 2) {
    throw std::invalid_argument(
        text(name, ": two streams exchange halves of the features, and there are ", q[3]));
  }
  for (const size_t place : {3, 4}) {
    if (!inputs[place].data != !inputs[3].data || (inputs[place].data && powers)) {
      throw std::invalid_argument(
          text(name, ": a numerator has both top_q and top_k, and is without powers"));
    }
    if (inputs[place].data) check(name, "the numerator", inputs[place].shape, place == 3 ? q : k);
  }
  for (const size_t place : {5, 6}) {
    if (powers) check(name, "power and shift", inputs[place].shape, {q[2], 1, q[3]});
  }
  if (k[1] == 0) throw std::invalid_argument(text(name, ": there must be a key"));
  if (q[0] * q[1] * q[2] * q[3] > 0) Call(*this, inputs).run(out);
}

}  // namespace operators
}  // namespace mmlaplace
