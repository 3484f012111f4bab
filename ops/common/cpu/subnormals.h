// Subnormal numbers, those below 2^-126 in fp32 and 2^-1022 in fp64, as zeros.
//
// Kernels of far tokens are such numbers, and operations with them are slow on x86 processors. They
// made the backward pass of a trained model's nystrom_attention take 4 times as long (torch 2.11,
// an Intel Xeon with AVX-512, a bandwidth of 1).
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mmlaplace {

// While it lives, the thread takes and gives zeros in place of subnormal numbers. Without an x86
// processor it does nothing.
class SubnormalsAsZeros {
 public:
  SubnormalsAsZeros(const SubnormalsAsZeros&) = delete;
  SubnormalsAsZeros& operator=(const SubnormalsAsZeros&) = delete;

#if defined(__x86_64__)
  SubnormalsAsZeros() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kResults | kOperands); }
  ~SubnormalsAsZeros() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kResults = 0x8000, kOperands = 0x0040;
  unsigned before_;
#else
  SubnormalsAsZeros() {}
  ~SubnormalsAsZeros() {}
#endif
};

}  // namespace mmlaplace
