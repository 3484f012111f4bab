// What the operators for ONNX Runtime share. All are fp32, on a CPU, in the domain "mmlaplace".
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "host.h"

namespace mmlaplace {
namespace onnx {

using Shape = std::vector<int64_t>;

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream all;
  (all << ... << parts);
  return all.str();
}

inline std::string text(const Shape& shape) {
  std::string all = "(";
  for (const int64_t size : shape) all += (all.size() > 1 ? ", " : "") + std::to_string(size);
  return all + ")";
}

// An input, which is absent where `data` is null.
struct Input {
  const float* data = nullptr;
  Shape shape;

  Input(const Ort::KernelContext& context, size_t index) {
    if (index >= context.GetInputCount()) return;
    const Ort::ConstValue value = context.GetInput(index);
    if (!value) return;
    data = value.GetTensorData<float>();
    shape = value.GetTensorTypeAndShapeInfo().GetShape();
  }
};

inline void check(const char* op, const char* name, const Shape& shape, const Shape& expected) {
  if (shape != expected) {
    throw std::invalid_argument(
        text(op, ": ", name, " must be ", text(expected), ", got ", text(shape)));
  }
}

// No exception may reach ONNX Runtime, which takes a status.
template <class F>
OrtStatusPtr status_of(const F& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return Ort::GetApi().CreateStatus(ORT_FAIL, error.what());
  }
  return nullptr;
}

// A kernel, as ONNX Runtime calls it.
template <class Kernel>
struct Guarded : Kernel {
  using Kernel::Kernel;
  OrtStatusPtr ComputeV2(OrtKernelContext* context) const {
    host::current_context = context;
    return status_of([&] { this->compute(Ort::KernelContext(context)); });
  }
};

// An operator. Its kernel has a constructor from the attributes, and compute(context). Its output
// is shaped like its first input.
template <class Kernel>
struct Operator : Ort::CustomOpBase<Operator<Kernel>, Guarded<Kernel>, true> {
  OrtStatusPtr CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const {
    return status_of([&] { *kernel = new Guarded<Kernel>(Ort::ConstKernelInfo(info)); });
  }
  const char* GetName() const { return Kernel::name; }
  size_t GetInputTypeCount() const { return Kernel::inputs; }
  ONNXTensorElementDataType GetInputType(size_t) const {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(size_t index) const {
    return index < Kernel::required ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
  }
  size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetOutputType(size_t) const {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
  static OrtStatusPtr InferOutputShape(Ort::ShapeInferContext& context) {
    const auto shape = context.GetInputShape(0);
    // Without a shape there is nothing to tell, as no output is a single number.
    return shape.empty() ? nullptr : context.SetOutputShape(0, shape).release();
  }
};

// The operators. Each is in a source of its own, as its kernels are compiled once per instruction
// set.
const OrtCustomOp* nystrom_attention();
const OrtCustomOp* normalized_nystrom_attention();
const OrtCustomOp* cholesky_inverse();

}  // namespace onnx
}  // namespace mmlaplace
