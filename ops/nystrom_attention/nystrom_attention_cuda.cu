#include <torch/library.h>

#include "../common/cuda/launch.h"
#include "nystrom_attention_passes.h"

namespace mmlaplace {
namespace nystrom {

// In nystrom_attention_laplacian_cuda.cu and nystrom_attention_gaussian_cuda.cu, as one source with
// the kernels of both would compile for twice as long.
#define MMLAPLACE_ELSEWHERE(Metric)                                                              \
  extern template Results forward<cuda::Gpu, Metric>(const at::Tensor&, const at::Tensor&,       \
                                                     const at::Tensor&, const Inputs&);          \
  extern template Gradients backward<cuda::Gpu, Metric>(                                         \
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const Inputs&, \
      const at::Tensor&, const at::Tensor&, const at::Tensor&)
MMLAPLACE_ELSEWHERE(Laplacian);
MMLAPLACE_ELSEWHERE(Gaussian);

}  // namespace nystrom

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
    results = nystrom::forward<Gpu, decltype(metric)>(q, k, v, inputs);
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
  return nystrom::backward<Gpu>(grad, q, k, v,
                                {landmarks, inverse, scale, rotary, bandwidth, whitening, adjacent},
                                mean, covariance, mixed, kernel);
}

}  // namespace
}  // namespace mmlaplace

TORCH_LIBRARY_IMPL(mmlaplace, CUDA, library) {
  library.impl("nystrom_attention", mmlaplace::forward);
  library.impl("_nystrom_attention_backward", mmlaplace::backward);
}
