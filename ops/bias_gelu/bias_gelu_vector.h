// Included once per instruction set; see cpu_dispatch.h.
//
// GELU(z) = z F(z). F is the distribution function of the standard normal distribution, or the
// sigmoid by which the approximation replaces it.
#include "../common/cpu/simd.h"

// F(z), and its derivative.
template <bool kTanh, class V>
MMLAPLACE_INLINE void distribution(V z, V* value, V* slope) {
  const V size = abs(z), square = z * z;
  if (kTanh) {  // F(z) = 1 / (1 + exp(-u)), u = sqrt(8 / pi) (z + 0.044715 z^3)
    const V decay = exp2_nonpositive(size * (square * -0.10294324f - 2.3022082f));
    const V inverse = 1.0f / (1.0f + decay);
    *value = (z < V{} ? decay : broadcast<V>(1)) * inverse;
    *slope = decay * inverse * inverse * (square * 0.21406445f + 1.5957691f);
  } else {
    // Beyond 5.5, where F(-z) is below 2e-8, it is 0 or 1. In between, F(z) = 1/2 + z P(z^2), with
    // a polynomial of 2 z^2 / 5.5^2 - 1, as one of z^2 would cancel.
    constexpr float kTerms[] = {-0.00020100783f, 0.00060558284f, -0.00064668246f, 0.0008030556f,
                                -0.002265135f,   0.0045189285f,  -0.0069200182f,  0.010290242f,
                                -0.014964941f,   0.020345414f,   -0.02605406f,    0.03207301f,
                                -0.038792368f,   0.047737483f,   -0.06417235f,    0.12855193f};
    const V limit = broadcast<V>(30.25f), one = broadcast<V>(1);
    const V u = (square < limit ? square : limit) * (2 / 30.25f) - 1.0f;
    V p = broadcast<V>(kTerms[0]);
    for (int i = 1; i < 16; ++i) p = p * u + kTerms[i];
    p = p * z + 0.5f;
    p = p < V{} ? V{} : p;
    *value = p > one ? one : p;
    *slope = exp2_nonpositive(square * -0.72134752f) * 0.39894228f;
  }
}

template <bool kTanh, class V>
MMLAPLACE_INLINE V gelu(V z) {
  V value, slope;
  distribution<kTanh>(z, &value, &slope);
  return z * value;
}

// GELU again, and the gradient of z over that of GELU.
template <bool kTanh, class V>
MMLAPLACE_INLINE V gelu_gradient(V z, V* grad) {
  V value, slope;
  distribution<kTanh>(z, &value, &slope);
  *grad *= value + z * slope;
  return z * value;
}

template <bool kTanh>
void gelu_rows(const GeluRows& block) {
  using V = Vec<float>;
  const int64_t rest = block.channels % Traits<V>::lanes, whole = block.channels - rest;
  const float* bias = block.bias;
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* x = block.x + row * block.channels;
    float* out = block.out + row * block.channels;
    for (int64_t c = 0; c < whole; c += Traits<V>::lanes) {
      store(out + c, gelu<kTanh>(load<V>(x + c) + load<V>(bias + c)));
    }
    if (rest > 0) {
      const V z = load_first<V>(x + whole, rest) + load_first<V>(bias + whole, rest);
      store_first(out + whole, gelu<kTanh>(z), rest);
    }
  }
}

// The gradient of the bias is added.
template <bool kTanh>
void gelu_gradient_rows(const GeluRows& block) {
  using V = Vec<float>;
  const int64_t rest = block.channels % Traits<V>::lanes, whole = block.channels - rest;
  const float* bias = block.bias;
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* x = block.x + row * block.channels;
    float *out = block.out + row * block.channels, *grad = block.grad + row * block.channels;
    for (int64_t c = 0; c < whole; c += Traits<V>::lanes) {
      V change = load<V>(grad + c);
      store(out + c, gelu_gradient<kTanh>(load<V>(x + c) + load<V>(bias + c), &change));
      store(grad + c, change);
      store(block.bias_grad + c, load<V>(block.bias_grad + c) + change);
    }
    if (rest > 0) {
      const V z = load_first<V>(x + whole, rest) + load_first<V>(bias + whole, rest);
      V change = load_first<V>(grad + whole, rest);
      store_first(out + whole, gelu_gradient<kTanh>(z, &change), rest);
      store_first(grad + whole, change, rest);
      for (int64_t lane = 0; lane < rest; ++lane) block.bias_grad[whole + lane] += change[lane];
    }
  }
}
