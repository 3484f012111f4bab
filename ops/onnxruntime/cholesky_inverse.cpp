// CholeskyInverse: (mat + ridge I)^-1 of matrices (..., m, m), see
// mmlaplace/ops/cholesky_inverse.py.
#include "../cholesky_inverse/cholesky_inverse_cpu.h"

#include "operators.h"

namespace mmlaplace {
namespace onnx {
namespace {

struct CholeskyInverse {
  static constexpr const char* name = "CholeskyInverse";
  static constexpr size_t inputs = 1, required = 1;
  const float ridge;

  explicit CholeskyInverse(const Ort::ConstKernelInfo& info)
      : ridge(info.GetAttribute<float>("ridge")) {}

  void compute(const Ort::KernelContext& context) const {
    const Input mat(context, 0);
    const Shape& shape = mat.shape;
    if (shape.size() < 2 || shape.back() != shape[shape.size() - 2]) {
      throw std::invalid_argument(text(name, ": mat must be (..., m, m), got ", text(shape)));
    }
    float* out = context.GetOutput(0, shape).GetTensorMutableData<float>();
    int64_t count = 1;
    for (size_t axis = 0; axis + 2 < shape.size(); ++axis) count *= shape[axis];
    if (shape.back() > 0) cholesky::invert_small(mat.data, count, shape.back(), ridge, out);
  }
};

}  // namespace

const OrtCustomOp* cholesky_inverse() {
  static const Operator<CholeskyInverse> op;
  return &op;
}

}  // namespace onnx
}  // namespace mmlaplace
