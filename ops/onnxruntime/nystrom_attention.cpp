// NystromAttention, see mmlaplace/ops/nystrom_attention.py.
//
// q, k, v and the result are (B, tokens, heads, d), as a linear leaves them, so that files need no
// transposition. landmarks (B, heads, m, d), inverse (B, heads, m, m), scale (B, heads) and rotary
// (2, pairs, N), which may be absent, are those of the op for PyTorch.
#include "../nystrom_attention/nystrom_attention_forward.h"

#include "operators.h"

namespace mmlaplace {
namespace onnx {
namespace {

struct NystromAttention {
  static constexpr const char* name = "NystromAttention";
  static constexpr size_t inputs = 7, required = 6;
  const std::string kernel;
  const float bandwidth, whitening;
  const bool adjacent;

  explicit NystromAttention(const Ort::ConstKernelInfo& info)
      : kernel(info.GetAttribute<std::string>("kernel")),
        bandwidth(info.GetAttribute<float>("bandwidth")),
        whitening(info.GetAttribute<float>("whitening")),
        adjacent(info.GetAttribute<int64_t>("adjacent") != 0) {
    if (kernel != "laplacian" && kernel != "gaussian") {
      throw std::invalid_argument(
          text(name, ": kernel must be laplacian or gaussian, got ", kernel));
    }
  }

  void compute(const Ort::KernelContext& context) const {
    if (kernel == "laplacian") {
      attend<Laplacian>(context);
    } else {
      attend<Gaussian>(context);
    }
  }

 private:
  template <class Metric>
  void attend(const Ort::KernelContext& context) const {
    const Input q(context, 0), k(context, 1), v(context, 2), landmarks(context, 3);
    const Input inverse(context, 4), scale(context, 5), rotary(context, 6);
    if (q.shape.size() != 4 || k.shape.size() != 4 || landmarks.shape.size() != 4) {
      throw std::invalid_argument(text(name, ": q, k and landmarks must have four axes, got ",
                                       text(q.shape), ", ", text(k.shape), " and ",
                                       text(landmarks.shape)));
    }
    const int64_t batch = q.shape[0], heads = q.shape[2], dims = q.shape[3];
    const nystrom::Sizes sizes{batch, heads, q.shape[1], k.shape[1], landmarks.shape[2], dims};
    check(name, "k", k.shape, {batch, sizes.keys, heads, dims});
    check(name, "v", v.shape, k.shape);
    check(name, "landmarks", landmarks.shape, {batch, heads, sizes.marks, dims});
    check(name, "inverse", inverse.shape, {batch, heads, sizes.marks, sizes.marks});
    check(name, "scale", scale.shape, {batch, heads});
    Rotation<float> rotation;
    if (rotary.data) {
      const int64_t pairs = rotary.shape.size() == 3 ? rotary.shape[1] : 0;
      check(name, "rotary", rotary.shape, {2, std::min(pairs, dims / 2), sizes.queries});
      check(name, "k with rotary", k.shape, q.shape);
      rotation = {rotary.data, pairs, sizes.queries, adjacent};
    }
    float* out = context.GetOutput(0, q.shape).GetTensorMutableData<float>();
    const nystrom::Problem<float, float> problem(
        sizes, view(q), view(k), view(v), landmarks.data, inverse.data, scale.data, rotation,
        Metric::exponent(bandwidth), Metric::derivative(bandwidth), whitening);
    const int64_t all = sizes.batch_heads(), m = sizes.marks;
    // What PyTorch keeps for the backward.
    Arrays<float> kept({all * m, all * m * m, all * m * dims});
    float *mean = kept.take(all * m), *covariance = kept.take(all * m * m);
    float* mixed = kept.take(all * m * dims);
    if (all * sizes.queries * dims == 0) return;
    nystrom::Forward<Metric, float, float>(problem, out, mean, covariance, mixed).run();
  }

  // Tokens (B, tokens, heads, d) as (B, heads, tokens, d).
  static View<const float> view(const Input& tokens) {
    const int64_t rows = tokens.shape[1], heads = tokens.shape[2], dims = tokens.shape[3];
    return {tokens.data, {rows * heads * dims, dims, heads * dims, 1}, heads};
  }
};

}  // namespace

const OrtCustomOp* nystrom_attention() {
  static const Operator<NystromAttention> op;
  return &op;
}

}  // namespace onnx
}  // namespace mmlaplace
