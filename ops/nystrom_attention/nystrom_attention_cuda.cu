#include "../common/tensor.h"

#include "../common/cuda/launch.h"
#include "nystrom_attention_passes.h"

namespace mmlaplace {

// In sources of their own, nystrom_attention_{laplacian,gaussian}_cuda.cu.
extern template struct nystrom::Attention<cuda::Gpu, Laplacian>;
extern template struct nystrom::Attention<cuda::Gpu, Gaussian>;

namespace {

using cuda::Gpu;

nystrom::Results forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& landmarks,
                         const Tensor& inverse, const Tensor& scale, const OptionalTensor& rotary,
                         StringView kernel, double bandwidth, double whitening, bool adjacent) {
  const nystrom::Inputs inputs{landmarks, inverse, scale, rotary, bandwidth, whitening, adjacent};
  nystrom::Results results;
  nystrom::with_metric(kernel, [&](auto metric) {
    results = nystrom::Attention<Gpu, decltype(metric)>::forward(q, k, v, inputs);
  });
  return results;
}

nystrom::Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Tensor& landmarks, const Tensor& inverse, const Tensor& scale,
                            const OptionalTensor& rotary, const Tensor& mean,
                            const Tensor& covariance, const Tensor& mixed, StringView kernel,
                            double bandwidth, double whitening, bool adjacent) {
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

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("nystrom_attention", MMLAPLACE_KERNEL(mmlaplace::forward));
  library.impl("_nystrom_attention_backward", MMLAPLACE_KERNEL(mmlaplace::backward));
}
