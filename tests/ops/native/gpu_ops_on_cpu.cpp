// The CUDA ops with landmarks as ops for CPUs: their host code as it is, and their device code run
// by threads. `shared_memory` is what a block may have, which decides where tiles are.
#include "cuda_on_cpu.h"

using std::copysign;
using std::exp2;
using std::fabs;
using std::sqrt;

// The minimum of blocks per processor comes with the threads of a block.
#undef __launch_bounds__
#define __launch_bounds__(...)

#include <torch/library.h>

#include "../../../ops/nystrom_attention/nystrom_attention_passes.h"
#include "../../../ops/pooled_landmarks/pooled_landmarks_passes.h"

namespace {

int64_t shared_memory = sizeof(dynamic_shared_memory);

struct Cpu {
  explicit Cpu(const at::Tensor&) {}
  int64_t shared_memory() const { return ::shared_memory; }
  template <class Kernel, class... Arguments>
  void launch(const char*, Kernel kernel, int64_t blocks, int threads, int64_t bytes,
              Arguments... arguments) const {
    TORCH_CHECK(bytes <= ::shared_memory, "shared memory of ", bytes, " bytes");
    ::launch(kernel, static_cast<unsigned int>(blocks), threads, arguments...);
  }
};

mmlaplace::nystrom::Results attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& landmarks, const at::Tensor& inverse,
                                      const at::Tensor& scale,
                                      const c10::optional<at::Tensor>& rotary,
                                      c10::string_view kernel, double bandwidth, double whitening,
                                      bool adjacent) {
  mmlaplace::nystrom::Results results;
  mmlaplace::nystrom::with_metric(kernel, [&](auto metric) {
    results = mmlaplace::nystrom::Attention<Cpu, decltype(metric)>::forward(
        q, k, v, {landmarks, inverse, scale, rotary, bandwidth, whitening, adjacent});
  });
  return results;
}

mmlaplace::nystrom::Gradients attention_backward(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& landmarks, const at::Tensor& inverse, const at::Tensor& scale,
    const c10::optional<at::Tensor>& rotary, const at::Tensor& mean, const at::Tensor& covariance,
    const at::Tensor& mixed, c10::string_view kernel, double bandwidth, double whitening,
    bool adjacent) {
  mmlaplace::nystrom::Gradients gradients;
  mmlaplace::nystrom::with_metric(kernel, [&](auto metric) {
    gradients = mmlaplace::nystrom::Attention<Cpu, decltype(metric)>::backward(
        grad, q, k, v, {landmarks, inverse, scale, rotary, bandwidth, whitening, adjacent}, mean,
        covariance, mixed);
  });
  return gradients;
}

}  // namespace

TORCH_LIBRARY(mmlaplace_gpu_on_cpu, library) {
  library.def("set_shared_memory(int bytes) -> ()", [](int64_t bytes) { shared_memory = bytes; });
  library.def(
      "nystrom_attention(Tensor q, Tensor k, Tensor v, Tensor landmarks, Tensor inverse, Tensor "
      "scale, Tensor? rotary, str kernel, float bandwidth, float whitening, bool adjacent) -> "
      "(Tensor, Tensor, Tensor, Tensor)",
      attention);
  library.def(
      "_nystrom_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor landmarks, "
      "Tensor inverse, Tensor scale, Tensor? rotary, Tensor mean, Tensor covariance, Tensor mixed, "
      "str kernel, float bandwidth, float whitening, bool adjacent) -> (Tensor, Tensor, Tensor, "
      "Tensor, Tensor, Tensor)",
      attention_backward);
  library.def(
      "pooled_landmarks(Tensor k, Tensor? rotary, bool adjacent, int height, int width, int rows, "
      "int columns, int ratio) -> Tensor",
      mmlaplace::pooled::forward<Cpu>);
  library.def(
      "_pooled_landmarks_backward(Tensor grad, Tensor k, Tensor? rotary, bool adjacent, int "
      "height, int width, int rows, int columns, int ratio) -> Tensor",
      mmlaplace::pooled::backward<Cpu>);
}
