// An operator of ops/operators as OpenVINO calls it.
#pragma once

#include <openvino/frontend/onnx/extension/conversion.hpp>
#include <openvino/op/op.hpp>

#include "../operators/operators.h"

namespace mmlaplace {
namespace openvino {

using operators::Input;
using operators::Inputs;

// The tensor of a node, or none of one that is absent. `numbers` keeps integers of 32 bits, which
// OpenVINO may take in the place of 64, in 64 bits.
inline Input input_of(const char* op, const ov::Tensor& tensor, bool integers,
                      std::vector<int64_t>& numbers) {
  const ov::Shape& sizes = tensor.get_shape();
  const operators::Shape shape(sizes.begin(), sizes.end());
  const ov::element::Type type = tensor.get_element_type();
  if (integers && type == ov::element::i64) return {nullptr, tensor.data<const int64_t>(), shape};
  if (integers && type == ov::element::i32) {
    const int32_t* data = tensor.data<const int32_t>();
    numbers.assign(data, data + tensor.get_size());
    return {nullptr, numbers.data(), shape};
  }
  if (!integers && type == ov::element::f32) return {tensor.data<const float>(), nullptr, shape};
  throw std::invalid_argument(operators::text(op, ": inputs must be fp32, got ", type.to_string(),
                                              "; export the model without --fp16"));
}

template <class Kernel>
class Operator : public ov::op::Op {
 public:
  static const ov::DiscreteTypeInfo& get_type_info_static() {
    static const ov::DiscreteTypeInfo info(Kernel::name, "mmlaplace");
    return info;
  }
  const ov::DiscreteTypeInfo& get_type_info() const override { return get_type_info_static(); }

  Operator() = default;
  // `places` are those of the inputs, as optional ones between others may be absent.
  Operator(const ov::OutputVector& inputs, const Kernel& kernel, const std::vector<int64_t>& places)
      : ov::op::Op(inputs), kernel_(kernel), places_(places) {
    constructor_validate_and_infer_types();
  }

  void validate_and_infer_types() override {
    const ov::element::Type type = get_input_element_type(0);
    NODE_VALIDATION_CHECK(this, type.is_dynamic() || type == ov::element::f32, Kernel::name,
                          ": inputs must be fp32, got ", type, "; export the model without --fp16");
    set_output_type(0, ov::element::f32, get_input_partial_shape(0));
  }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    return std::make_shared<Operator>(inputs, kernel_, places_);
  }

  bool visit_attributes(ov::AttributeVisitor& visitor) override {
    kernel_.attributes([&](const char* name, auto& value) { visitor.on_attribute(name, value); });
    visitor.on_attribute("places", places_);
    return true;
  }

  bool has_evaluate() const override { return true; }

  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& given) const override {
    std::vector<Input> all(Kernel::inputs);
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < given.size(); ++i) {
      const size_t place = static_cast<size_t>(places_[i]);
      all[place] = input_of(Kernel::name, given[i], place == Kernel::integers, numbers);
    }
    outputs[0].set_shape(given[0].get_shape());
    kernel_.compute(Inputs(all), outputs[0].data<float>());
    return true;
  }

  // A node of an ONNX file.
  static ov::OutputVector convert(const ov::frontend::NodeContext& node) {
    ov::OutputVector inputs;
    std::vector<int64_t> places;
    for (size_t place = 0; place < node.get_input_size(); ++place) {
      const auto input = node.get_input(static_cast<int>(place));
      // In the place of an input that is absent there is a node of this type.
      if (std::string(input.get_node()->get_type_name()) == "NullNode") continue;
      inputs.push_back(input), places.push_back(static_cast<int64_t>(place));
    }
    Kernel kernel;
    kernel.attributes([&](const char* name, auto& value) {
      value = node.get_attribute<std::remove_reference_t<decltype(value)>>(name);
    });
    return std::make_shared<Operator>(inputs, kernel, places)->outputs();
  }

 private:
  Kernel kernel_;
  std::vector<int64_t> places_;
};

}  // namespace openvino
}  // namespace mmlaplace
