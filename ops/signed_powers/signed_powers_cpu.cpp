#include "../common/tensor.h"

#include <algorithm>
#include <tuple>

#include "../common/cpu/checks.h"
#include "../common/pairwise.h"

namespace mmlaplace {

// Rows of a head. Channels of a row are beside each other.
struct PowerRows {
  const float *x, *power, *shift;
  int64_t rows, dims, x_stride;
  // In the forward pass (rows, 2 dims), in the backward pass the gradient of x, (rows, dims).
  float* out;
  // In the backward pass.
  const float* grad;
  int64_t grad_stride;
  float *power_grad, *shift_grad;  // (dims), the rows are added
};

}  // namespace mmlaplace

#define MMLAPLACE_KERNELS "../../signed_powers/signed_powers_vector.h"
#include "../common/cpu/cpu_dispatch.h"

namespace mmlaplace {
namespace {

// Values that a thread takes at once. Sums over rows are made for as many.
constexpr int64_t kValues = 16384;

Tensor with_contiguous_rows(const Tensor& tensor) {
  return tensor.stride(3) == 1 ? tensor : tensor.contiguous();
}

// The rows that are computed at once, of which each head has `parts`. Their number does not depend
// on that of the threads.
struct Parts {
  Tensor x, power, shift;
  int64_t heads, rows, dims, step, parts;

  Parts(const Tensor& tokens, const Tensor& powers, const Tensor& shifts) {
    MMLAPLACE_CHECK(tokens.dim() == 4, "signed_powers: x must be (B, heads, N, d), got shape ",
                    tokens.sizes());
    check_fp32("signed_powers", "x", tokens, tokens.sizes());
    heads = tokens.size(1), rows = tokens.size(2), dims = tokens.size(3);
    check_fp32("signed_powers", "power", powers, {heads, 1, dims});
    check_fp32("signed_powers", "shift", shifts, {heads, 1, dims});
    x = with_contiguous_rows(tokens), power = powers.contiguous(), shift = shifts.contiguous();
    step = std::max<int64_t>(kValues / std::max<int64_t>(dims, 1), 1);
    parts = ceil_div(rows, step);
  }

  // Calls f(rows of x, (batch, head), part, first row).
  template <class F>
  void for_each(const F& f) const {
    host::parallel_for(x.size(0) * heads * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t index = begin; index < end; ++index) {
        const int64_t batch_head = index / parts, part = index % parts, first = part * step;
        const int64_t channels = batch_head % heads * dims;
        const Slice<const float> slice_x = slice<const float>(x, batch_head).from(first);
        PowerRows block{};
        block.x = slice_x.data, block.x_stride = slice_x.row_stride;
        block.power = power.data_ptr<float>() + channels;
        block.shift = shift.data_ptr<float>() + channels;
        block.rows = std::min(step, rows - first), block.dims = dims;
        f(block, batch_head, part, first);
      }
    });
  }
};

Tensor forward(const Tensor& x, const Tensor& power, const Tensor& shift) {
  const Parts all(x, power, shift);
  const Tensor out = empty({x.size(0), all.heads, all.rows, 2 * all.dims}, x);
  all.for_each([&](PowerRows block, int64_t batch_head, int64_t, int64_t first) {
    block.out = slice<float>(out, batch_head).row(first);
    MMLAPLACE_FOR_CPU(power_rows(block));
  });
  return out;
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& x,
                                            const Tensor& power, const Tensor& shift) {
  const Parts all(x, power, shift);
  check_fp32("signed_powers", "grad", grad, {x.size(0), all.heads, all.rows, 2 * all.dims});
  const Tensor grads = with_contiguous_rows(grad);
  const Tensor of_x = empty({x.size(0), all.heads, all.rows, all.dims}, x);
  // For each part those of the powers, and after them those of the shifts.
  const Tensor sums = zeros({2, x.size(0), all.parts, all.heads, 1, all.dims}, x);
  all.for_each([&](PowerRows block, int64_t batch_head, int64_t part, int64_t first) {
    const Slice<const float> slice_grad = slice<const float>(grads, batch_head).from(first);
    const int64_t batch = batch_head / all.heads, head = batch_head % all.heads;
    block.grad = slice_grad.data, block.grad_stride = slice_grad.row_stride;
    block.out = slice<float>(of_x, batch_head).row(first);
    block.power_grad =
        sums.data_ptr<float>() + ((batch * all.parts + part) * all.heads + head) * all.dims;
    block.shift_grad = block.power_grad + sums.stride(0);
    MMLAPLACE_FOR_CPU(power_gradient_rows(block));
  });
  const Tensor of_both = sums.sum({1, 2});
  return {of_x, of_both[0].clone(), of_both[1].clone()};  // results of an op share no memory
}

}  // namespace
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("_signed_powers", MMLAPLACE_KERNEL(mmlaplace::forward));
  library.impl("_signed_powers_backward", MMLAPLACE_KERNEL(mmlaplace::backward));
}
