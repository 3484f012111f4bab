// The CUDA attentions and their landmarks as ops for CPUs: their host code as it is, and their
// device code run by threads. `shared_memory` is what a block may have, which decides where tiles
// are.
#include "cuda_on_cpu.h"

using std::copysign;
using std::exp2;
using std::fabs;
using std::log2;
using std::sqrt;

// The minimum of blocks per processor comes with the threads of a block.
#undef __launch_bounds__
#define __launch_bounds__(...)

#include "../../../ops/kernel_attention/kernel_attention_passes.h"
#include "../../../ops/linear_attention/linear_attention_passes.h"
#include "../../../ops/normalized_nystrom_attention/normalized_nystrom_attention_passes.h"
#include "../../../ops/nystrom_attention/landmark_attention.h"

namespace mmlaplace {
namespace {

int64_t shared_memory = sizeof(dynamic_shared_memory);
int64_t launches = 0;
bool tensor_cores = false, running = true;

struct Cpu {
  explicit Cpu(const Tensor&) {}
  int64_t shared_memory() const { return mmlaplace::shared_memory; }
  template <class Kernel>
  bool tensor_cores(Kernel) const {
    return mmlaplace::tensor_cores;
  }
  template <class Kernel, class... Arguments>
  void launch(const char*, Kernel kernel, int64_t blocks, int threads, int64_t bytes,
              Arguments... arguments) const {
    MMLAPLACE_CHECK(bytes <= mmlaplace::shared_memory, "shared memory of ", bytes, " bytes");
    ++launches;
    if (running) ::launch(kernel, static_cast<unsigned int>(blocks), threads, arguments...);
  }
};

void set_shared_memory(int64_t bytes) { shared_memory = bytes; }
void set_tensor_cores(bool wanted) { tensor_cores = wanted; }
// Whether kernels run, or are counted alone.
void set_running(bool wanted) { running = wanted; }
void set_last_block_first(bool wanted) { last_block_first = wanted; }
int64_t launches_so_far() { return launches; }

}  // namespace
}  // namespace mmlaplace

MMLAPLACE_NAMESPACE(mmlaplace_gpu_on_cpu);

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace_gpu_on_cpu, library) {
  library.def("set_shared_memory(int bytes) -> ()");
  library.def("set_tensor_cores(bool wanted) -> ()");
  library.def("set_running(bool wanted) -> ()");
  library.def("set_last_block_first(bool wanted) -> ()");
  library.def("launches_so_far() -> int");
  library.def(
      "nystrom_attention(Tensor q, Tensor k, Tensor v, Tensor landmarks, Tensor inverse, Tensor "
      "scale, Tensor? rotary, str kernel, float bandwidth, float? whitening_eps, str rotary_form) "
      "-> "
      "(Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "_nystrom_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor landmarks, "
      "Tensor inverse, Tensor scale, Tensor? rotary, Tensor mean, Tensor covariance, Tensor mixed, "
      "str kernel, float bandwidth, float? whitening_eps, str rotary_form) -> (Tensor, Tensor, "
      "Tensor, "
      "Tensor, Tensor, Tensor)");
  library.def(
      "normalized_nystrom_attention(Tensor q, Tensor k, Tensor v, Tensor landmarks, Tensor "
      "inverse, Tensor? rotary, str kernel, float bandwidth, float floor, str rotary_form) -> "
      "(Tensor, Tensor, Tensor)");
  library.def(
      "_normalized_nystrom_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor "
      "landmarks, Tensor inverse, Tensor? rotary, Tensor key_sum, Tensor mixed, str kernel, float "
      "bandwidth, float floor, str rotary_form) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "kernel_attention(Tensor q, Tensor k, Tensor v, Tensor? rotary, str kernel, float bandwidth, "
      "str rotary_form) -> (Tensor, Tensor, Tensor)");
  library.def(
      "_kernel_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? rotary, "
      "Tensor means, Tensor log_sums, str kernel, float bandwidth, str rotary_form) -> (Tensor, "
      "Tensor, Tensor)");
  library.def(
      "_landmark_attention(Tensor q, Tensor k, Tensor v, Tensor? gamma, Tensor? rotary, str "
      "rotary_form, int height, int width, int? rows, int? columns, int? ratio, str kernel, float "
      "bandwidth, float ridge, float? whitening_eps) -> Tensor");
  library.def(
      "pooled_landmarks(Tensor k, Tensor? rotary, str rotary_form, int height, int width, int? "
      "rows, int? columns, int? ratio) -> Tensor");
  library.def(
      "_pooled_landmarks_backward(Tensor grad, Tensor k, Tensor? rotary, str rotary_form, int "
      "height, int width, int? rows, int? columns, int? ratio) -> Tensor");
  library.def(
      "linear_attention(Tensor q, Tensor k, Tensor v, Tensor? top_q, Tensor? top_k, float eps, str "
      "features, int streams) -> (Tensor, Tensor)");
  library.def(
      "_linear_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? top_q, "
      "Tensor? top_k, Tensor sums, float eps, str features, int streams) -> (Tensor, Tensor, "
      "Tensor, Tensor, Tensor)");
}

MMLAPLACE_LIBRARY_IMPL(mmlaplace_gpu_on_cpu, CompositeExplicitAutograd, library) {
  library.impl("set_shared_memory", MMLAPLACE_KERNEL(mmlaplace::set_shared_memory));
  library.impl("set_tensor_cores", MMLAPLACE_KERNEL(mmlaplace::set_tensor_cores));
  library.impl("set_running", MMLAPLACE_KERNEL(mmlaplace::set_running));
  library.impl("set_last_block_first", MMLAPLACE_KERNEL(mmlaplace::set_last_block_first));
  library.impl("launches_so_far", MMLAPLACE_KERNEL(mmlaplace::launches_so_far));
  library.impl("nystrom_attention", MMLAPLACE_KERNEL(mmlaplace::nystrom::forward<mmlaplace::Cpu>));
  library.impl("_landmark_attention",
               MMLAPLACE_KERNEL(mmlaplace::nystrom::landmark_attention<mmlaplace::Cpu>));
  library.impl("_nystrom_attention_backward",
               MMLAPLACE_KERNEL(mmlaplace::nystrom::backward<mmlaplace::Cpu>));
  library.impl("normalized_nystrom_attention",
               MMLAPLACE_KERNEL(mmlaplace::normalized_nystrom::forward<mmlaplace::Cpu>));
  library.impl("_normalized_nystrom_attention_backward",
               MMLAPLACE_KERNEL(mmlaplace::normalized_nystrom::backward<mmlaplace::Cpu>));
  library.impl("kernel_attention", MMLAPLACE_KERNEL(mmlaplace::exact::forward<mmlaplace::Cpu>));
  library.impl("_kernel_attention_backward",
               MMLAPLACE_KERNEL(mmlaplace::exact::backward<mmlaplace::Cpu>));
  library.impl("pooled_landmarks", MMLAPLACE_KERNEL(mmlaplace::pooled::forward<mmlaplace::Cpu>));
  library.impl("_pooled_landmarks_backward",
               MMLAPLACE_KERNEL(mmlaplace::pooled::backward<mmlaplace::Cpu>));
  library.impl("linear_attention", MMLAPLACE_KERNEL(mmlaplace::linear::forward<mmlaplace::Cpu>));
  library.impl("_linear_attention_backward",
               MMLAPLACE_KERNEL(mmlaplace::linear::backward<mmlaplace::Cpu>));
}
