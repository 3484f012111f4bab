// Included once per instruction set; see cpu_dispatch.h.
#include "../common/cpu/simd.h"
// After simd.h, which has the vectors.
#include "powers.h"

// The gradients of x, power and shift for those of both parts.
template <class V>
MMLAPLACE_INLINE V power_gradient(V x, V power, V shift, V positive, V negative, V* of_power,
                                  V* of_shift) {
  using Bits = typename Traits<V>::bits;
  // 2^-63 is the root of the smallest normal number. So the logarithm is finite, and a power
  // divided by such a number is nothing where the power is.
  const V least = broadcast<V>(1.08420217e-19f), lowest = broadcast<V>(-63);
  V size = abs(x), log = log2_nonnegative(size);
  const V value = exp2_of_any(log * power + shift * kLog2E);
  *of_shift = value * (x < V{} ? negative : positive);
  log = log < lowest ? lowest : log;
  *of_power = *of_shift * log * kLn2;
  size = size < least ? least : size;
  const V with_sign = (V)((Bits)size | ((Bits)x & sign_bit<V>()));
  return *of_shift * power / with_sign;
}

inline void power_rows(const PowerRows& block) {
  using V = Vec<float>;
  const int64_t dims = block.dims, rest = dims % Traits<V>::lanes, whole = dims - rest;
  V positive, negative;
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* x = block.x + row * block.x_stride;
    float *out = block.out + row * 2 * dims, *out_negative = out + dims;
    for (int64_t c = 0; c < whole; c += Traits<V>::lanes) {
      powers(load<V>(x + c), load<V>(block.power + c), load<V>(block.shift + c), &positive,
             &negative);
      store(out + c, positive);
      store(out_negative + c, negative);
    }
    if (rest > 0) {
      powers(load_first<V>(x + whole, rest), load_first<V>(block.power + whole, rest),
             load_first<V>(block.shift + whole, rest), &positive, &negative);
      store_first(out + whole, positive, rest);
      store_first(out_negative + whole, negative, rest);
    }
  }
}

inline void power_gradient_rows(const PowerRows& block) {
  using V = Vec<float>;
  const int64_t dims = block.dims, rest = dims % Traits<V>::lanes, whole = dims - rest;
  float *power_grad = block.power_grad, *shift_grad = block.shift_grad;
  V of_power, of_shift;
  for (int64_t row = 0; row < block.rows; ++row) {
    const float *x = block.x + row * block.x_stride, *grad = block.grad + row * block.grad_stride;
    float* out = block.out + row * dims;
    for (int64_t c = 0; c < whole; c += Traits<V>::lanes) {
      store(out + c,
            power_gradient(load<V>(x + c), load<V>(block.power + c), load<V>(block.shift + c),
                           load<V>(grad + c), load<V>(grad + dims + c), &of_power, &of_shift));
      store(power_grad + c, load<V>(power_grad + c) + of_power);
      store(shift_grad + c, load<V>(shift_grad + c) + of_shift);
    }
    if (rest > 0) {
      const V of_x = power_gradient(
          load_first<V>(x + whole, rest), load_first<V>(block.power + whole, rest),
          load_first<V>(block.shift + whole, rest), load_first<V>(grad + whole, rest),
          load_first<V>(grad + dims + whole, rest), &of_power, &of_shift);
      store_first(out + whole, of_x, rest);
      for (int64_t lane = 0; lane < rest; ++lane) {
        power_grad[whole + lane] += of_power[lane];
        shift_grad[whole + lane] += of_shift[lane];
      }
    }
  }
}
