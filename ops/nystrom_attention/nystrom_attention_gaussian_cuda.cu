#include "../common/cuda/launch.h"
#include "nystrom_attention_passes.h"

namespace mmlaplace {
namespace nystrom {

template Results forward<cuda::Gpu, Gaussian>(const at::Tensor&, const at::Tensor&,
                                              const at::Tensor&, const Inputs&);
template Gradients backward<cuda::Gpu, Gaussian>(const at::Tensor&, const at::Tensor&,
                                                 const at::Tensor&, const at::Tensor&,
                                                 const Inputs&, const at::Tensor&,
                                                 const at::Tensor&, const at::Tensor&);

}  // namespace nystrom
}  // namespace mmlaplace
