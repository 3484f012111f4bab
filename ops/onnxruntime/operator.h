// An operator of ops/operators as ONNX Runtime calls it.
#pragma once

#include "../operators/operators.h"
#include "host.h"

namespace mmlaplace {
namespace onnx {

using operators::Input;
using operators::Inputs;

inline Input input_of(const Ort::KernelContext& context, size_t index, bool integers) {
  if (index >= context.GetInputCount()) return {};
  const Ort::ConstValue value = context.GetInput(index);
  if (!value) return {};
  const operators::Shape shape = value.GetTensorTypeAndShapeInfo().GetShape();
  if (integers) return {nullptr, value.GetTensorData<int64_t>(), shape};
  return {value.GetTensorData<float>(), nullptr, shape};
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

// A node of a graph.
template <class Op>
struct Kernel {
  Op op;

  explicit Kernel(const Ort::ConstKernelInfo& info) {
    op.attributes([&](const char* name, auto& value) {
      value = info.GetAttribute<std::remove_reference_t<decltype(value)>>(name);
    });
  }

  OrtStatusPtr ComputeV2(OrtKernelContext* given) const {
    host::current_context = given;
    return status_of([&] {
      const Ort::KernelContext context(given);
      std::vector<Input> all;
      for (size_t index = 0; index < Op::inputs; ++index) {
        all.push_back(input_of(context, index, index == Op::integers));
      }
      float* out = context.GetOutput(0, all[0].shape).template GetTensorMutableData<float>();
      op.compute(Inputs(all), out);
    });
  }
};

template <class Op>
struct Operator : Ort::CustomOpBase<Operator<Op>, Kernel<Op>, true> {
  OrtStatusPtr CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const {
    return status_of([&] { *kernel = new Kernel<Op>(Ort::ConstKernelInfo(info)); });
  }
  const char* GetName() const { return Op::name; }
  size_t GetInputTypeCount() const { return Op::inputs; }
  ONNXTensorElementDataType GetInputType(size_t index) const {
    return index == Op::integers ? ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64
                                 : ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(size_t index) const {
    return index < Op::required ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
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

}  // namespace onnx
}  // namespace mmlaplace
