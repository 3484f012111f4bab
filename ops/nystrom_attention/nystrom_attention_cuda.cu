#include <torch/library.h>

#include "../common/cuda/launch.h"
#include "nystrom_attention_passes.h"

namespace mmlaplace {

// In sources of their own, nystrom_attention_{laplacian,gaussian}_cuda.cu.
extern template struct nystrom::Attention<cuda::Gpu, Laplacian>;
extern template struct nystrom::Attention<cuda::Gpu, Gaussian>;

namespace {

using cuda::Gpu;

nystrom::Results forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const at::Tensor& landmarks, const at::Tensor& inverse,
                         const at::Tensor& scale, const c10::optional<at::Tensor>& rotary,
                         c10::string_view kernel, double bandwidth, double whitening,
                         bool adjacent) {
  const nystrom::Inputs inputs{landmarks, inverse, scale, rotary, bandwidth, whitening, adjacent};
  nystrom::Results results;
  nystrom::with_metric(kernel, [&](auto metric) {
    results = nystrom::Attention<Gpu, decltype(metric)>::forward(q, k, v, inputs);
  });
  return results;
}

nystrom::Gradients backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& landmarks,
                            const at::Tensor& inverse, const at::Tensor& scale,
                            const c10::optional<at::Tensor>& rotary, const at::Tensor& mean,
                            const at::Tensor& covariance, const at::Tensor& mixed,
                            c10::string_view kernel, double bandwidth, double whitening,
                            bool adjacent) {
  const nystrom::Inputs inputs{landmarks, inverse, scale, rotary, bandwidth, whitening, adjacent};
  nystrom::Gradients gradients;
  nystrom::with_metric(kernel, [&](auto metric) {
    gradients = nystrom::Attention<Gpu, decltype(metric)>::backward(grad, q, k, v, inputs, mean,
                                                                    covariance, mixed);
  });
  return gradients;
}

}  // namespace
}  // namespace mmlaplace

TORCH_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("nystrom_attention", mmlaplace::forward);
  library.impl("_nystrom_attention_backward", mmlaplace::backward);
}
