// Launches of the kernels for matrices that a block of a GPU keeps in shared memory.
#pragma once

#include "../common/cuda/gpu.h"
#include "../common/matrices.h"

#include <limits>
#include <type_traits>

namespace mmlaplace {
namespace cuda {

template <int Value>
using Constant = std::integral_constant<int, Value>;

// Calls function(Grid, Tile) with the smallest layout for matrices of m rows.
template <class Function>
void with_small_layout(const char* op, int64_t m, const Function& function) {
  check_rows(op, m, 64, "GPU");
  if (m <= 16) return function(Constant<8>{}, Constant<2>{});
  if (m <= 32) return function(Constant<8>{}, Constant<4>{});
  if (m <= 40) return function(Constant<8>{}, Constant<5>{});
  if (m <= 56) return function(Constant<8>{}, Constant<7>{});  // 49 landmarks
  function(Constant<8>{}, Constant<8>{});
}

template <class Function>
void with_layout(const char* op, int64_t m, const Function& function) {
  check_rows(op, m, 128, "GPU");
  if (m <= 64) return with_small_layout(op, m, function);
  if (m <= 96) return function(Constant<16>{}, Constant<6>{});
  function(Constant<16>{}, Constant<8>{});
}

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
