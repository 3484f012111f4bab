// The operators of attention through landmarks.
#include "../nystrom_attention/nystrom_attention_forward.h"

#include "../normalized_nystrom_attention/normalized_nystrom_attention_forward.h"
#include "../nystrom_attention/landmark_attention_cpu.h"
#include "inverse.h"
#include "operators.h"

namespace mmlaplace {
namespace operators {
namespace {

// Calls f with the metric of this name.
template <class F>
void with_metric(const char* op, const std::string& kernel, const F& f) {
  if (kernel == "laplacian") return f(Laplacian{});
  if (kernel == "gaussian") return f(Gaussian{});
  throw std::invalid_argument(text(op, ": kernel must be laplacian or gaussian, got ", kernel));
}

// Tokens (B, tokens, heads, d) as (B, heads, tokens, d).
View<const float> view(const Input& tokens) {
  const int64_t rows = tokens.shape[1], heads = tokens.shape[2], dims = tokens.shape[3];
  return {tokens.data, {rows * heads * dims, dims, heads * dims, 1}, heads};
}

// The sizes of q, k and v, with `marks` landmarks.
nystrom::Sizes sizes_of(const char* op, const Inputs& inputs, int64_t marks) {
  const Shape &q = inputs[0].shape, &k = inputs[1].shape;
  if (q.size() != 4 || k.size() != 4) {
    throw std::invalid_argument(
        text(op, ": q and k must have four axes, got ", text(q), " and ", text(k)));
  }
  const nystrom::Sizes sizes{q[0], q[2], q[1], k[1], marks, q[3]};
  check(op, "k", k, {sizes.batch, sizes.keys, sizes.heads, sizes.dims});
  check(op, "v", inputs[2].shape, k);
  return sizes;
}

Rotation<float> rotation_of(const char* op, const Input& rotary, const nystrom::Sizes& sizes,
                            bool adjacent) {
  if (!rotary.data) return {};
  const int64_t pairs = rotary.shape.size() == 3 ? rotary.shape[1] : 0;
  check(op, "rotary", rotary.shape, {2, std::min(pairs, sizes.dims / 2), sizes.queries});
  check(op, "keys with rotary", {sizes.keys}, {sizes.queries});
  return {rotary.data, pairs, sizes.queries, adjacent};
}

// What a call has besides q, k and v, in the terms of the passes.
struct Call {
  nystrom::Sizes sizes;
  const float *landmarks, *inverse, *scale;
  Rotation<float> rotation;
  double bandwidth, whitening;
};

template <class Metric>
nystrom::Problem<float, float> problem(const Inputs& inputs, const Call& call) {
  return {call.sizes,
          view(inputs[0]),
          view(inputs[1]),
          view(inputs[2]),
          call.landmarks,
          call.inverse,
          call.scale,
          call.rotation,
          Metric::exponent(call.bandwidth),
          Metric::derivative(call.bandwidth),
          call.whitening};
}

template <class Metric>
void attend(const Inputs& inputs, const Call& call, float* out) {
  const nystrom::Sizes& sizes = call.sizes;
  const int64_t all = sizes.batch_heads(), m = sizes.marks;
  if (all * sizes.queries * sizes.dims == 0) return;
  const auto given = problem<Metric>(inputs, call);
  // What PyTorch keeps for the backward.
  Arrays<float> kept({all * m, all * m * m, all * m * sizes.dims});
  float *mean = kept.take(all * m), *covariance = kept.take(all * m * m);
  float* mixed = kept.take(all * m * sizes.dims);
  nystrom::Forward<Metric, float, float>(given, out, mean, covariance, mixed).run();
}

template <class Metric>
void attend_normalized(const char* op, const Inputs& inputs, const Call& call, float floor,
                       float* out) {
  const nystrom::Sizes& sizes = call.sizes;
  const int64_t all = sizes.batch_heads(), m = sizes.marks;
  if (m == 0) throw std::invalid_argument(text(op, ": there must be a landmark"));
  if (all * sizes.queries * sizes.dims == 0) return;
  const auto given = problem<Metric>(inputs, call);
  Arrays<float> kept({all * m, all * m * sizes.dims});
  float *key_sum = kept.take(all * m), *mixed = kept.take(all * m * sizes.dims);
  normalized_nystrom::Forward<Metric, float, float>(given, floor, out, key_sum, mixed).run();
}

// The sizes of a call whose landmarks and inverse are inputs 3 and 4.
nystrom::Sizes sizes_with_landmarks(const char* op, const Inputs& inputs) {
  const Shape& landmarks = inputs[3].shape;
  if (landmarks.size() != 4) {
    throw std::invalid_argument(text(op, ": landmarks must have four axes, got ", text(landmarks)));
  }
  const nystrom::Sizes sizes = sizes_of(op, inputs, landmarks[2]);
  check(op, "landmarks", landmarks, {sizes.batch, sizes.heads, sizes.marks, sizes.dims});
  check(op, "inverse", inputs[4].shape, {sizes.batch, sizes.heads, sizes.marks, sizes.marks});
  return sizes;
}

// Height and width, and the cells of landmarks.
Map map_of(const char* op, const Inputs& inputs, const nystrom::Sizes& sizes, int64_t ratio) {
  check(op, "map", inputs[3].shape, {4});
  const int64_t* map = inputs[3].integers;
  const int64_t height = map[0], width = map[1];
  if (height < 1 || width < 1 || height * width != sizes.queries) {
    throw std::invalid_argument(text(op, ": a map of ", height, " x ", width, " must have the ",
                                     sizes.queries, " tokens of q"));
  }
  check(op, "keys", {sizes.keys}, {sizes.queries});
  Map result{sizes.batch_heads(), sizes.heads, sizes.dims, height, width, {}, {}};
  if (ratio > 0) {
    result.rows = {height, ceil_div(height, ratio), ratio};
    result.columns = {width, ceil_div(width, ratio), ratio};
    return result;
  }
  if (map[2] < 1 || map[3] < 1) {
    throw std::invalid_argument(text(op, ": needs cells, got ", map[2], " x ", map[3]));
  }
  result.rows = {height, map[2], 0}, result.columns = {width, map[3], 0};
  return result;
}

}  // namespace

void NystromAttention::compute(const Inputs& inputs, float* out) const {
  const nystrom::Sizes sizes = sizes_with_landmarks(name, inputs);
  check(name, "scale", inputs[5].shape, {sizes.batch, sizes.heads});
  const Rotation<float> rotation = rotation_of(name, inputs[6], sizes, adjacent != 0);
  const Call call{sizes,    inputs[3].data, inputs[4].data, inputs[5].data,
                  rotation, bandwidth,      whitening};
  with_metric(name, kernel, [&](auto metric) { attend<decltype(metric)>(inputs, call, out); });
}

void NormalizedNystromAttention::compute(const Inputs& inputs, float* out) const {
  const nystrom::Sizes sizes = sizes_with_landmarks(name, inputs);
  const Rotation<float> rotation = rotation_of(name, inputs[5], sizes, adjacent != 0);
  const Call call{sizes, inputs[3].data, inputs[4].data, nullptr, rotation, bandwidth, -1};
  with_metric(name, kernel, [&](auto metric) {
    attend_normalized<decltype(metric)>(name, inputs, call, floor, out);
  });
}

void LandmarkAttention::compute(const Inputs& inputs, float* out) const {
  nystrom::Sizes sizes = sizes_of(name, inputs, 0);
  const Map map = map_of(name, inputs, sizes, ratio);
  const Rotation<float> rotation = rotation_of(name, inputs[5], sizes, adjacent != 0);
  const Input& gamma = inputs[4];
  if (gamma.data) check(name, "gamma", gamma.shape, {sizes.heads});
  const int64_t all = sizes.batch_heads(), m = sizes.marks = map.cells();
  if (all * sizes.queries * sizes.dims == 0) return;
  Arrays<float> memory({all * m * sizes.dims, all * m * m, all * m * m, all}, /*zero=*/false);
  float *landmarks = memory.take(all * m * sizes.dims), *mats = memory.take(all * m * m);
  float *inverse = memory.take(all * m * m), *scale = memory.take(all);
  for (int64_t head = 0; head < all; ++head) {
    scale[head] = gamma.data ? gamma.data[head % sizes.heads] / sizes.keys : 1;
  }
  pooled::pool(map, view(inputs[of_queries ? 0 : 1]), rotation, landmarks);
  const Call call{sizes, landmarks, inverse, scale, rotation, bandwidth, whitening};
  with_metric(name, kernel, [&](auto metric) {
    using Metric = decltype(metric);
    nystrom::kernel_of_landmarks<Metric>(sizes, landmarks, bandwidth, mats);
    invert(mats, all, m, ridge, inverse);
    if (floor < 0) return attend<Metric>(inputs, call, out);
    attend_normalized<Metric>(name, inputs, call, floor, out);
  });
}

}  // namespace operators
}  // namespace mmlaplace
