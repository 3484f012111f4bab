// Included once per instruction set; see cpu_dispatch.h.
#include "../common/cpu/simd.h"

inline void take_differences(int64_t steps, float seed, volatile float* sink) {
  using V = Vec<float>;
  V sums[kChains] = {};
  V key = broadcast<V>(seed);
  const V query = broadcast<V>(1 - seed);
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 8
    for (int chain = 0; chain < kChains; ++chain) {
      asm volatile("" : "+x"(key));  // otherwise the compiler would take the difference once
      sums[chain] += abs(query - key);
    }
  }
  float total = 0;
  for (int chain = 0; chain < kChains; ++chain) total += sums[chain][0];
  *sink = total;
}
