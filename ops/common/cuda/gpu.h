// The GPU that the tensors of a call are on, and its current stream, see tensor.h.
#pragma once

#include <cuda_runtime.h>

#include "../tensor.h"

#ifdef STABLE_TORCH_SHIM
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#define MMLAPLACE_CUDA_CHECK STD_CUDA_CHECK

namespace mmlaplace {
namespace cuda {

// Makes the GPU of a tensor the current one, as long as this exists.
class Guard {
 public:
  explicit Guard(const Tensor& tensor) : guard_(tensor.get_device()) {}

 private:
  torch::stable::accelerator::DeviceGuard guard_;
};

// Of the current GPU.
inline cudaStream_t current_stream() {
  const int32_t index = torch::stable::accelerator::getCurrentDeviceIndex();
  void* stream = nullptr;
  check_status(aoti_torch_get_current_cuda_stream(index, &stream), "current stream");
  return static_cast<cudaStream_t>(stream);
}

}  // namespace cuda
}  // namespace mmlaplace
#else
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#define MMLAPLACE_CUDA_CHECK C10_CUDA_CHECK

namespace mmlaplace {
namespace cuda {

class Guard {
 public:
  explicit Guard(const Tensor& tensor) : guard_(tensor.device()) {}

 private:
  c10::cuda::CUDAGuard guard_;
};

inline cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream(); }

}  // namespace cuda
}  // namespace mmlaplace
#endif
