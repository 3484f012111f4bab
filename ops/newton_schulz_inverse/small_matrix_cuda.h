// Launches of the kernels for matrices that a block of a GPU keeps in shared memory.
#pragma once

#include "../common/cuda/gpu.h"
#include "small_matrix_layouts.h"

#include <limits>

namespace mmlaplace {
namespace cuda {

// Launches a block per matrix.
template <class... Parameters, class... Arguments>
void launch(const char* op, void (*kernel)(Parameters...), const Tensor& mats, int threads,
            int bytes, Arguments... arguments) {
  int available = 0;
  MMLAPLACE_CUDA_CHECK(cudaDeviceGetAttribute(&available, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                              mats.get_device()));
  MMLAPLACE_CHECK(bytes <= available && mats.size(0) <= std::numeric_limits<int32_t>::max(), op,
                  ": for ", mats.sizes(), " a block of this GPU needs ", bytes,
                  " bytes of shared memory and has ", available,
                  ", or there are 2^31 matrices or more; backend='reference' has no limit");
  MMLAPLACE_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<static_cast<unsigned int>(mats.size(0)), threads, bytes, current_stream()>>>(
      arguments...);
  MMLAPLACE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace cuda
}  // namespace mmlaplace
