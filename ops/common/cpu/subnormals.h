// Subnormal numbers, those below 2^-126 in fp32 and 2^-1022 in fp64, as zeros.
//
// Kernels of far tokens are such numbers, and each operation with one takes a hundred times as long
// as others on many x86 processors.
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
