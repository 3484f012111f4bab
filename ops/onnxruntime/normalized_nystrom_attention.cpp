// NormalizedNystromAttention, see mmlaplace/ops/normalized_nystrom_attention.py and
// nystrom_inputs.h.
#include "../normalized_nystrom_attention/normalized_nystrom_attention_forward.h"

#include "nystrom_inputs.h"

namespace mmlaplace {
namespace onnx {
namespace {

struct NormalizedNystromAttention {
  static constexpr const char* name = "NormalizedNystromAttention";
  static constexpr size_t inputs = 6, required = 5;
  const std::string kernel;
  const float bandwidth, floor;
  const bool adjacent;

  explicit NormalizedNystromAttention(const Ort::ConstKernelInfo& info)
      : kernel(info.GetAttribute<std::string>("kernel")),
        bandwidth(info.GetAttribute<float>("bandwidth")),
        floor(info.GetAttribute<float>("floor")),
        adjacent(info.GetAttribute<int64_t>("adjacent") != 0) {
    with_metric(name, kernel, [](auto) {});
  }

  void compute(const Ort::KernelContext& context) const {
    with_metric(name, kernel, [&](auto metric) { attend<decltype(metric)>(context); });
  }

 private:
  template <class Metric>
  void attend(const Ort::KernelContext& context) const {
    const NystromInputs inputs(name, context, 5, adjacent);
    const nystrom::Sizes& sizes = inputs.sizes;
    if (sizes.marks == 0) throw std::invalid_argument(text(name, ": there must be a landmark"));
    float* out = context.GetOutput(0, inputs.q.shape).GetTensorMutableData<float>();
    const auto problem = inputs.problem<Metric>(nullptr, bandwidth, -1);
    const int64_t all = sizes.batch_heads(), m = sizes.marks;
    // What PyTorch keeps for the backward.
    Arrays<float> kept({all * m, all * m * sizes.dims});
    float *key_sum = kept.take(all * m), *mixed = kept.take(all * m * sizes.dims);
    if (all * sizes.queries * sizes.dims == 0) return;
    normalized_nystrom::Forward<Metric, float, float>(problem, floor, out, key_sum, mixed).run();
  }
};

}  // namespace

const OrtCustomOp* normalized_nystrom_attention() {
  static const Operator<NormalizedNystromAttention> op;
  return &op;
}

}  // namespace onnx
}  // namespace mmlaplace
