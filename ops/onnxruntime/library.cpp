// The library that ONNX Runtime loads by RegisterCustomOpsLibrary. It knows nothing of PyTorch.
// tools/deployment/build_onnxruntime_ops.py compiles it.
#include "operators.h"

extern "C" __attribute__((visibility("default"))) OrtStatusPtr
RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) {  // an older ONNX Runtime, which has said so
    return base->GetApi(1)->CreateStatus(
        ORT_FAIL,
        "this library of mmlaplace was compiled for a newer ONNX Runtime; compile it again "
        "with the headers of this one");
  }
  Ort::InitApi(api);
  return mmlaplace::onnx::status_of([&] {
    static const Ort::CustomOpDomain domain = [] {  // sessions keep pointers to it
      Ort::CustomOpDomain operators("mmlaplace");
      operators.Add(mmlaplace::onnx::nystrom_attention());
      operators.Add(mmlaplace::onnx::normalized_nystrom_attention());
      operators.Add(mmlaplace::onnx::cholesky_inverse());
      return operators;
    }();
    Ort::UnownedSessionOptions(options).Add(domain);
  });
}
