// What the operators of Nyström attention share: their inputs, with the checks of their shapes.
#pragma once

#include "../nystrom_attention/nystrom_attention_cpu.h"

#include "operators.h"

namespace mmlaplace {
namespace onnx {

// Inputs 0 to 4 are q, k, v (B, tokens, heads, d), as a linear leaves them, landmarks (B, heads, m,
// d) and inverse (B, heads, m, m). Rotary (2, pairs, N), which may be absent, is the last.
struct NystromInputs {
  const Input q, k, v, landmarks, inverse, rotary;
  nystrom::Sizes sizes;
  Rotation<float> rotation;

  NystromInputs(const char* name, const Ort::KernelContext& context, size_t rotary_index,
                bool adjacent)
      : q(context, 0),
        k(context, 1),
        v(context, 2),
        landmarks(context, 3),
        inverse(context, 4),
        rotary(context, rotary_index) {
    if (q.shape.size() != 4 || k.shape.size() != 4 || landmarks.shape.size() != 4) {
      throw std::invalid_argument(text(name, ": q, k and landmarks must have four axes, got ",
                                       text(q.shape), ", ", text(k.shape), " and ",
                                       text(landmarks.shape)));
    }
    const int64_t batch = q.shape[0], heads = q.shape[2], dims = q.shape[3];
    sizes = {batch, heads, q.shape[1], k.shape[1], landmarks.shape[2], dims};
    check(name, "k", k.shape, {batch, sizes.keys, heads, dims});
    check(name, "v", v.shape, k.shape);
    check(name, "landmarks", landmarks.shape, {batch, heads, sizes.marks, dims});
    check(name, "inverse", inverse.shape, {batch, heads, sizes.marks, sizes.marks});
    if (rotary.data) {
      const int64_t pairs = rotary.shape.size() == 3 ? rotary.shape[1] : 0;
      check(name, "rotary", rotary.shape, {2, std::min(pairs, dims / 2), sizes.queries});
      check(name, "k with rotary", k.shape, q.shape);
      rotation = {rotary.data, pairs, sizes.queries, adjacent};
    }
  }

  template <class Metric>
  nystrom::Problem<float, float> problem(const float* scale, float bandwidth,
                                         float whitening) const {
    return {sizes,
            view(q),
            view(k),
            view(v),
            landmarks.data,
            inverse.data,
            scale,
            rotation,
            Metric::exponent(bandwidth),
            Metric::derivative(bandwidth),
            whitening};
  }

 private:
  // Tokens (B, tokens, heads, d) as (B, heads, tokens, d).
  static View<const float> view(const Input& tokens) {
    const int64_t rows = tokens.shape[1], heads = tokens.shape[2], dims = tokens.shape[3];
    return {tokens.data, {rows * heads * dims, dims, heads * dims, 1}, heads};
  }
};

// Calls f with the metric of this name.
template <class F>
void with_metric(const char* name, const std::string& kernel, const F& f) {
  if (kernel == "laplacian") return f(Laplacian{});
  if (kernel == "gaussian") return f(Gaussian{});
  throw std::invalid_argument(text(name, ": kernel must be laplacian or gaussian, got ", kernel));
}

}  // namespace onnx
}  // namespace mmlaplace
