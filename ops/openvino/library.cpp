// The extension that OpenVINO loads by Core::add_extension. It knows nothing of PyTorch.
// tools/deployment/build_openvino_ops.py compiles it.
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>

#include "operator.h"

namespace {

using namespace mmlaplace;

template <class... Ops>
std::vector<ov::Extension::Ptr> extensions() {
  return {std::make_shared<ov::OpExtension<openvino::Operator<Ops>>>()...,
          std::make_shared<ov::frontend::onnx::ConversionExtension>(
              Ops::name, "mmlaplace", &openvino::Operator<Ops>::convert)...};
}

}  // namespace

OPENVINO_CREATE_EXTENSIONS(
    (extensions<operators::CholeskyInverse, operators::NewtonSchulzInverse,
                operators::NystromAttention, operators::NormalizedNystromAttention,
                operators::LandmarkAttention, operators::LinearAttention>()));
