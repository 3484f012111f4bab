// Included once per instruction set; see cpu_dispatch.h. It comes after simd.h.
//
// |x|^p e^s = 2^(p log2|x| + s log2(e)), beside its sign.

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// log2(x) of x >= 0, with an error of at most 1e-7 times its size. It is -inf for 0. Infinity and
// NaN stay what they are.
template <class V>
MMLAPLACE_INLINE V log2_nonnegative(V x) {
  using Bits = typename Traits<V>::bits;
  const V least = broadcast<V>(1.17549435e-38f);  // numbers below it have no bits of their own
  const V scaled = x < least ? x * 16777216.0f : x;
  // x = 2^n m with m from sqrt(1/2) to sqrt(2), so that log2(m) does not cancel n.
  const Bits exponent = ((Bits)scaled - 0x3f3504f3) >> 23;
  const V m = (V)((Bits)scaled - (exponent << 23));
  const V n = __builtin_convertvector(exponent, V) - (x < least ? broadcast<V>(24) : V{});
  // log(m) = 2 atanh(s), |s| <= 0.172, by its series to s^9. The next term is below 4e-9 of it.
  const V s = (m - 1.0f) / (m + 1.0f), square = s * s;
  V p = broadcast<V>(0.32059889f);
  p = p * square + 0.41219858f;
  p = p * square + 0.57707802f;
  p = p * square + 0.96179669f;
  p = p * square + 2.88539008f;
  const V log = p * s + n;
  const V largest = broadcast<V>(std::numeric_limits<float>::max());
  const V lowest = broadcast<V>(-std::numeric_limits<float>::infinity());
  return x <= largest ? (x == V{} ? lowest : log) : x;
}

// 2^x. Results below twice the smallest normal number are 0. NaN stays NaN.
template <class V>
MMLAPLACE_INLINE V exp2_of_any(V x) {
  const V highest = broadcast<V>(129);  // 2^128 is infinite
  x = x > highest ? highest : x;
  return exp2_nonpositive(x - 1.0f) * 2.0f;  // its polynomial and bits hold up to 128
}

template <class V>
MMLAPLACE_INLINE void powers(V x, V power, V shift, V* positive, V* negative) {
  const V value = exp2_of_any(log2_nonnegative(abs(x)) * power + shift * kLog2E);
  // NaN passes both comparisons as false.
  *positive = x < V{} ? V{} : value;
  *negative = x > V{} ? V{} : value;
}
