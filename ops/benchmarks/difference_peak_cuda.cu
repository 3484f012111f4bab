#include "../common/cuda/gpu.h"

namespace mmlaplace {
namespace {

constexpr int kChains = 8, kThreads = 256, kBlocksPerProcessor = 8;

__global__ void take_differences(int64_t steps, float seed, float* sink) {
  float sums[kChains] = {};
  float key = seed * static_cast<float>(threadIdx.x);
  for (int64_t step = 0; step < steps; ++step) {
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) {
      asm volatile("" : "+f"(key));  // otherwise the compiler would take the difference once
      sums[chain] += fabsf(seed - key);
    }
  }
  float total = 0;
  for (int chain = 0; chain < kChains; ++chain) total += sums[chain];
  if (total < 0) *sink = total;  // never true, which the compiler does not know
}

int64_t difference_peak(const Tensor& like, int64_t steps) {
  MMLAPLACE_CHECK(like.scalar_type() == ScalarType::Float && like.numel() > 0,
                  "difference_peak: like must be float32 with a value");
  const cuda::Guard guard(like);
  int processors = 0;
  MMLAPLACE_CUDA_CHECK(
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, like.get_device()));
  const int blocks = processors * kBlocksPerProcessor;
  take_differences<<<blocks, kThreads, 0, cuda::current_stream()>>>(steps, 0.25f,
                                                                    like.data_ptr<float>());
  MMLAPLACE_CUDA_CHECK(cudaGetLastError());
  return steps * kChains * kThreads * blocks;
}

}  // namespace
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace_benchmarks, CUDA, library) {
  library.impl("difference_peak", MMLAPLACE_KERNEL(mmlaplace::difference_peak));
}
