// What the code for CPUs takes from its host: threads, and the choice of the instruction set. The
// host is PyTorch, or ONNX Runtime in the library of ops/onnxruntime, which defines
// MMLAPLACE_ONNXRUNTIME.
#pragma once

#ifdef MMLAPLACE_ONNXRUNTIME
#include "../../onnxruntime/host.h"
#else
#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <cstdint>
#include <string>

namespace mmlaplace {
namespace host {

// The one that torch chose when it started. So its environment variable
// ATEN_CPU_CAPABILITY=default|avx2|avx512 also chooses ours.
inline std::string cpu_capability() { return at::get_cpu_capability(); }

// Calls f(begin, end) for parts of [0, count), of at least `grain` but for the last, on all
// threads.
template <class F>
void parallel_for(int64_t count, int64_t grain, const F& f) {
  at::parallel_for(0, count, grain, f);
}

}  // namespace host
}  // namespace mmlaplace
#endif
