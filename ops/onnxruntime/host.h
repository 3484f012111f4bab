// ONNX Runtime as the host of the code for CPUs, see common/cpu/host.h.
#pragma once

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "../common/cpu/instruction_set.h"

namespace mmlaplace {
namespace host {

// The call that this thread computes, whose session has the threads.
inline thread_local OrtKernelContext* current_context = nullptr;

template <class F>
void parallel_for(int64_t count, int64_t grain, const F& f) {
  const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const int64_t length = std::max(grain, (count + cores - 1) / cores);
  if (count <= length) {
    if (count > 0) f(0, count);
    return;
  }
  struct Job {
    const F& f;
    int64_t count, length;
    std::mutex mutex;
    std::exception_ptr error;
  } job{f, count, length, {}, nullptr};
  const auto part = [](void* data, size_t index) {
    Job& job = *static_cast<Job*>(data);
    const int64_t begin = static_cast<int64_t>(index) * job.length;
    try {
      job.f(begin, std::min(job.count, begin + job.length));
    } catch (...) {  // none may leave a thread of ONNX Runtime
      const std::lock_guard<std::mutex> lock(job.mutex);
      job.error = std::current_exception();
    }
  };
  const int64_t parts = (count + length - 1) / length;
  Ort::KernelContext(current_context).ParallelFor(part, parts, parts, &job);
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace host
}  // namespace mmlaplace
