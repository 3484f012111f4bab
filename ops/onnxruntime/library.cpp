// The library that ONNX Runtime loads by RegisterCustomOpsLibrary. It knows nothing of PyTorch.
// tools/deployment/build_onnxruntime_ops.py compiles it.
#include "operator.h"

namespace mmlaplace {
namespace onnx {
namespace {

template <class... Ops>
void add(Ort::CustomOpDomain& domain) {
  static const std::tuple<Operator<Ops>...> all;  // sessions keep pointers to them
  (domain.Add(&std::get<Operator<Ops>>(all)), ...);
}

}  // namespace
}  // namespace onnx
}  // namespace mmlaplace

extern "C" __attribute__((visibility("default"))) OrtStatusPtr
RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace mmlaplace;
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) {  // an older ONNX Runtime, which has said so
    return base->GetApi(1)->CreateStatus(
        ORT_FAIL,
        "this library of mmlaplace was compiled for a newer ONNX Runtime; compile it again "
        "with the headers of this one");
  }
  Ort::InitApi(api);
  return onnx::status_of([&] {
    static const Ort::CustomOpDomain domain = [] {  // sessions keep pointers to it, too
      Ort::CustomOpDomain domain("mmlaplace");
      onnx::add<operators::CholeskyInverse, operators::NewtonSchulzInverse,
                operators::NystromAttention, operators::NormalizedNystromAttention,
                operators::LandmarkAttention, operators::LinearAttention>(domain);
      return domain;
    }();
    Ort::UnownedSessionOptions(options).Add(domain);
  });
}
