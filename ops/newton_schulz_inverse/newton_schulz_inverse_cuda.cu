#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <limits>

#include "newton_schulz_inverse.h"
#include "newton_schulz_inverse_device.cuh"

namespace {

namespace device = mmlaplace::device;

// Runs the kernel if it can, and returns whether it did. A block must have a thread per 4 x 4 tile
// and shared memory for its matrices.
template <class T>
bool invert_in_blocks(const at::Tensor& mats, at::Tensor& out, int64_t num_iters, double ridge) {
  const int64_t m = mats.size(-1), threads = device::newton_schulz_threads(m),
                bytes = device::newton_schulz_bytes<T>(m);
  int available = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&available, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                        mats.get_device()));
  if (threads > 1024 || bytes > available || mats.size(0) > std::numeric_limits<int32_t>::max())
    return false;
  const auto kernel = device::newton_schulz_kernel<T>;
  C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(bytes)));
  kernel<<<static_cast<unsigned int>(mats.size(0)), static_cast<unsigned int>(threads), bytes,
           c10::cuda::getCurrentCUDAStream()>>>(
      mats.data_ptr<T>(), out.data_ptr<T>(), static_cast<int>(m), static_cast<int>(num_iters),
      static_cast<T>(ridge), std::numeric_limits<T>::epsilon(), std::numeric_limits<T>::infinity());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return true;
}

at::Tensor forward(const at::Tensor& mat, int64_t num_iters, double ridge) {
  mmlaplace::newton_schulz::check(mat, num_iters);
  const c10::cuda::CUDAGuard guard(mat.device());
  if (mat.numel() == 0) return at::empty(mat.sizes(), mat.options());
  const at::Tensor mats = mmlaplace::newton_schulz::flatten(mat);
  at::Tensor out = at::empty_like(mats);
  const bool done = mats.scalar_type() == at::kDouble
                        ? invert_in_blocks<double>(mats, out, num_iters, ridge)
                        : invert_in_blocks<float>(mats, out, num_iters, ridge);
  if (!done) out = mmlaplace::newton_schulz::by_matmul(mats, num_iters, ridge);
  return out.view(mat.sizes()).to(mat.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(mmlaplace, CUDA, library) { library.impl("newton_schulz_inverse", forward); }
