#include <torch/library.h>

#include "../common/pairwise_cuda.h"

namespace {

at::Tensor forward(const at::Tensor& q, const at::Tensor& k, double scale) {
  return mmlaplace::cuda::pairwise_forward<mmlaplace::Gaussian>("gaussian_kernel", q, k, scale);
}

std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& grad, const at::Tensor& q,
                                            const at::Tensor& k, const at::Tensor& out,
                                            double scale) {
  return mmlaplace::cuda::pairwise_backward<mmlaplace::Gaussian>("_gaussian_kernel_backward", grad,
                                                                 q, k, out, scale);
}

}  // namespace

TORCH_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("gaussian_kernel", forward);
  library.impl("_gaussian_kernel_backward", backward);
}
