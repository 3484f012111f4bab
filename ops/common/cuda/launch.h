// Launches kernels on the GPU of a tensor.
#pragma once

#include "gpu.h"

#include <cstdlib>
#include <cstring>
#include <limits>

namespace mmlaplace {
namespace cuda {

// The GPU that the tensors of a call are on, which is the current one as long as this exists. The
// host code of ops takes it as a template parameter. Tests have one that runs kernels on a CPU.
class Gpu {
 public:
  explicit Gpu(const Tensor& tensor) : guard_(tensor) {
    MMLAPLACE_CUDA_CHECK(cudaDeviceGetAttribute(
        &shared_memory_, cudaDevAttrMaxSharedMemoryPerBlockOptin, tensor.get_device()));
  }

  // The bytes of shared memory that a block can have.
  int64_t shared_memory() const { return shared_memory_; }

  // Whether to launch a kernel for tensor cores: if MMLAPLACE_TENSOR_CORES=1 asks for it, and its
  // code for this GPU was compiled for compute capability 8.0 or later.
  template <class Kernel>
  bool tensor_cores(Kernel kernel) const {
    const char* wanted = std::getenv("MMLAPLACE_TENSOR_CORES");
    if (wanted == nullptr || std::strcmp(wanted, "1") != 0) return false;
    cudaFuncAttributes attributes;
    MMLAPLACE_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    return attributes.ptxVersion >= 80;
  }

  // Only the first dimension of a grid allows 2^31 - 1 blocks, so all are counted there.
  template <class... Parameters, class... Arguments>
  void launch(const char* op, void (*kernel)(Parameters...), int64_t blocks, int threads,
              int64_t bytes, Arguments... arguments) const {
    MMLAPLACE_CHECK(blocks <= std::numeric_limits<int32_t>::max(), op, ": the inputs need ", blocks,
                    " CUDA blocks, more than 2^31 - 1; split the batch");
    if (bytes > 48 << 10) {  // more must be asked for
      MMLAPLACE_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                static_cast<int>(bytes)));
    }
    kernel<<<static_cast<unsigned int>(blocks), threads, bytes, current_stream()>>>(arguments...);
    MMLAPLACE_CUDA_CHECK(cudaGetLastError());
  }

 private:
  Guard guard_;
  int shared_memory_ = 0;
};

}  // namespace cuda
}  // namespace mmlaplace
