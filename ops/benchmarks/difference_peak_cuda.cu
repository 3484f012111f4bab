#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

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

int64_t difference_peak(const at::Tensor& like, int64_t steps) {
  TORCH_CHECK(like.scalar_type() == at::kFloat && like.numel() > 0,
              "difference_peak: like must be float32 with a value");
  const c10::cuda::CUDAGuard guard(like.device());
  int processors = 0;
  C10_CUDA_CHECK(
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, like.get_device()));
  const int blocks = processors * kBlocksPerProcessor;
  take_differences<<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
      steps, 0.25f, like.data_ptr<float>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return steps * kChains * kThreads * blocks;
}

}  // namespace

TORCH_LIBRARY_IMPL(mmlaplace_benchmarks, CUDA, library) {
  library.impl("difference_peak", difference_peak);
}
