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
                         StringView kernel, double bandwidth, OptionalDouble whitening_eps,
                         StringView form) {
  const nystrom::Inputs inputs{landmarks,
                               inverse,
                               scale,
                               rotary,
                               bandwidth,
                               nystrom::whitening_of(whitening_eps),
                               is_adjacent("nystrom_attention", form)};
  nystrom::Results results;
  nystrom::with_metric(kernel, bandwidth, [&](auto metric) {
    results = nystrom::Attention<Gpu, decltype(metric)>::forward(q, k, v, inputs);
  });
  return results;
}

nystrom::Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Tensor& landmarks, const Tensor& inverse, const Tensor& scale,
                            const OptionalTensor& rotary, const Tensor& mean,
                            const Tensor& covariance, const Tensor& mixed, StringView kernel,
                            double bandwidth, OptionalDouble whitening_eps, StringView form) {
  const nystrom::Inputs inputs{landmarks,
                               inverse,
                               scale,
                               rotary,
                               bandwidth,
                               nystrom::whitening_of(whitening_eps),
                               is_adjacent("nystrom_attention", form)};
  nystrom::Gradients gradients;
  nystrom::with_metric(kernel, bandwidth, [&](auto metric) {
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
