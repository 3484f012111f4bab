// NystromAttention, see mmlaplace/ops/nystrom_attention.py and nystrom_inputs.h. scale is
// (B, heads).
#include "../nystrom_attention/nystrom_attention_forward.h"

#include "nystrom_inputs.h"

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
    with_metric(name, kernel, [](auto) {});
  }

  void compute(const Ort::KernelContext& context) const {
    with_metric(name, kernel, [&](auto metric) { attend<decltype(metric)>(context); });
  }

 private:
  template <class Metric>
  void attend(const Ort::KernelContext& context) const {
    const NystromInputs inputs(name, context, 6, adjacent);
    const Input scale(context, 5);
    const nystrom::Sizes& sizes = inputs.sizes;
    check(name, "scale", scale.shape, {sizes.batch, sizes.heads});
    float* out = context.GetOutput(0, inputs.q.shape).GetTensorMutableData<float>();
    const auto problem = inputs.problem<Metric>(scale.data, bandwidth, whitening);
    const int64_t all = sizes.batch_heads(), m = sizes.marks;
    // What PyTorch keeps for the backward.
    Arrays<float> kept({all * m, all * m * m, all * m * sizes.dims});
    float *mean = kept.take(all * m), *covariance = kept.take(all * m * m);
    float* mixed = kept.take(all * m * sizes.dims);
    if (all * sizes.queries * sizes.dims == 0) return;
    nystrom::Forward<Metric, float, float>(problem, out, mean, covariance, mixed).run();
  }
};

}  // namespace

const OrtCustomOp* nystrom_attention() {
  static const Operator<NystromAttention> op;
  return &op;
}

}  // namespace onnx
}  // namespace mmlaplace
