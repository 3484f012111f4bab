// Launches of the kernels for matrices that a block of a GPU keeps in shared memory.
#pragma once

#include "../common/cuda/gpu.h"

#include <limits>
#include <type_traits>

namespace mmlaplace {
namespace cuda {

template <int Value>
using Constant = std::integral_constant<int, Value>;

// Calls function(Grid, Tile) with the smallest layout for matrices of m rows, and returns what it
// returns: whether it ran. False if m is too large for all of them.
template <class Function>
bool with_small_layout(int64_t m, const Function& function) {
  if (m <= 16) return function(Constant<8>{}, Constant<2>{});
  if (m <= 32) return function(Constant<8>{}, Constant<4>{});
  if (m <= 40) return function(Constant<8>{}, Constant<5>{});
  if (m <= 56) return function(Constant<8>{}, Constant<7>{});  // 49 landmarks
  if (m <= 64) return function(Constant<8>{}, Constant<8>{});
  return false;
}

template <class Function>
bool with_layout(int64_t m, const Function& function) {
  if (m <= 64) return with_small_layout(m, function);
  if (m <= 96) return function(Constant<16>{}, Constant<6>{});
  if (m <= 128) return function(Constant<16>{}, Constant<8>{});
  return false;
}

// Launches a block per matrix. False if the device has too little shared memory for one.
template <class... Parameters, class... Arguments>
bool launch(void (*kernel)(Parameters...), const Tensor& mats, int threads, int bytes,
            Arguments... arguments) {
  int available = 0;
  MMLAPLACE_CUDA_CHECK(cudaDeviceGetAttribute(&available, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                              mats.get_device()));
  if (bytes > available || mats.size(0) > std::numeric_limits<int32_t>::max()) return false;
  MMLAPLACE_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<static_cast<unsigned int>(mats.size(0)), threads, bytes, current_stream()>>>(
      arguments...);
  MMLAPLACE_CUDA_CHECK(cudaGetLastError());
  return true;
}

}  // namespace cuda
}  // namespace mmlaplace
