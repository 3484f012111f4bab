#include "../common/tensor.h"

#include <algorithm>

#include "../common/cpu/checks.h"
#include "../common/strided.h"

namespace mmlaplace {

struct GeluRows {
  const float *x, *bias;
  float *out, *grad, *bias_grad;  // the last two are null in the forward pass
  int64_t rows, channels;
};

}  // namespace mmlaplace

#define MMLAPLACE_KERNELS "../../bias_gelu/bias_gelu_vector.h"
#include "../common/cpu/cpu_dispatch.h"

namespace mmlaplace {
namespace {

// Values that a thread takes at once. Sums over rows are made for as many.
constexpr int64_t kValues = 16384;

GeluRows check_all(const Tensor& x, const Tensor& bias, const Tensor& out) {
  MMLAPLACE_CHECK(x.dim() == 2, "bias_gelu: x must be (rows, C), got shape ", x.sizes());
  check_contiguous_fp32("bias_gelu", "x", x, x.sizes());
  check_contiguous_fp32("bias_gelu", "bias", bias, x.sizes().slice(1));
  check_contiguous_fp32("bias_gelu", "out", out, x.sizes());
  return {x.data_ptr<float>(),
          bias.data_ptr<float>(),
          out.data_ptr<float>(),
          nullptr,
          nullptr,
          x.size(0),
          x.size(1)};
}

// Calls f(block, its index) for blocks of rows, whose number does not depend on that of the
// threads.
template <class F>
void for_blocks(const GeluRows& all, int64_t step, const F& f) {
  host::parallel_for(ceil_div(all.rows, step), 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      const int64_t first = index * step, offset = first * all.channels;
      GeluRows block = all;
      block.x += offset;
      block.out += offset;
      block.rows = std::min(step, all.rows - first);
      if (all.grad != nullptr) block.grad += offset;
      f(block, index);
    }
  });
}

int64_t rows_of_block(int64_t channels) {
  return std::max<int64_t>(kValues / std::max<int64_t>(channels, 1), 1);
}

void forward(const Tensor& x, const Tensor& bias, bool tanh, const Tensor& out) {
  const GeluRows all = check_all(x, bias, out);
  for_blocks(all, rows_of_block(all.channels), [&](const GeluRows& block, int64_t) {
    if (tanh) {
      MMLAPLACE_FOR_CPU(gelu_rows<true>(block));
    } else {
      MMLAPLACE_FOR_CPU(gelu_rows<false>(block));
    }
  });
}

Tensor backward(const Tensor& grad, const Tensor& x, const Tensor& bias, bool tanh,
                const Tensor& out) {
  GeluRows all = check_all(x, bias, out);
  check_contiguous_fp32("bias_gelu", "grad", grad, x.sizes());
  all.grad = grad.data_ptr<float>();
  const int64_t step = rows_of_block(all.channels);
  const Tensor sums = zeros({ceil_div(all.rows, step), all.channels}, x);
  for_blocks(all, step, [&](GeluRows block, int64_t index) {
    block.bias_grad = sums.data_ptr<float>() + index * all.channels;
    if (tanh) {
      MMLAPLACE_FOR_CPU(gelu_gradient_rows<true>(block));
    } else {
      MMLAPLACE_FOR_CPU(gelu_gradient_rows<false>(block));
    }
  });
  return sums.sum(0);
}

}  // namespace
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("_bias_gelu", MMLAPLACE_KERNEL(mmlaplace::forward));
  library.impl("_bias_gelu_backward", MMLAPLACE_KERNEL(mmlaplace::backward));
}
