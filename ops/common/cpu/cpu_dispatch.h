// Compiles a file of kernels once per instruction set, and calls the version for this machine.
//
// A source defines MMLAPLACE_KERNELS, the path of that file seen from here, and includes this file.
// The kernels are then in the namespaces mmlaplace::plain, ::avx2 and ::avx512, and
// MMLAPLACE_FOR_CPU(function(arguments)) calls one of the three.
//
// The pragmas below take the place of -march flags. All headers are included before them, so the
// linker never finds a function of a header that was compiled for AVX-512.
//
// The vectors in simd.h are our own, since at::vec::Vectorized in their place took 1.09 to 1.15
// times as long for the gradient with AVX2, where it has no instruction for a sign. Otherwise it
// gave the same bits in the same time: 0.97 to 0.98 for the forward pass with AVX2, and 0.99
// and 1.00 for both with AVX-512 (torch 2.11, Intel Xeon of family 6, model 167; see
// ops/README.md).
//
// With MMLAPLACE_VECTOR_BYTES=16, 32 or 64 only the version with these vectors is compiled. The
// sanitizers' build does so, as all three take minutes and it runs on the machine that makes it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "host.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__linux__) && defined(__x86_64__) && defined(__GLIBC__)
// The one that glibc has had from the beginning. Its newer version, of glibc 2.29, differs in
// errno.
__asm__(".symver exp2,exp2@GLIBC_2.2.5");
#endif

#ifndef MMLAPLACE_INLINE
#define MMLAPLACE_INLINE static inline __attribute__((always_inline))

namespace mmlaplace {

enum class CpuCapability { plain, avx2, avx512 };

// The instruction set that the host chose, see host.h.
inline CpuCapability cpu_capability() {
#if defined(MMLAPLACE_VECTOR_BYTES)
  return MMLAPLACE_VECTOR_BYTES == 64   ? CpuCapability::avx512
         : MMLAPLACE_VECTOR_BYTES == 32 ? CpuCapability::avx2
                                        : CpuCapability::plain;
#else
  static const CpuCapability capability = [] {
    const std::string name = host::cpu_capability();
    if (name == "AVX512") return CpuCapability::avx512;
    if (name == "AVX2") return CpuCapability::avx2;
    return CpuCapability::plain;
  }();
  return capability;
#endif
}

inline int vector_bytes() {
  switch (cpu_capability()) {
    case CpuCapability::avx512: return 64;
    case CpuCapability::avx2: return 32;
    default: return 16;
  }
}

}  // namespace mmlaplace

#if MMLAPLACE_VECTOR_BYTES == 64
#define MMLAPLACE_FOR_CPU(...) avx512::__VA_ARGS__
#elif MMLAPLACE_VECTOR_BYTES == 32
#define MMLAPLACE_FOR_CPU(...) avx2::__VA_ARGS__
#elif defined(__x86_64__) && !defined(MMLAPLACE_VECTOR_BYTES)
#define MMLAPLACE_FOR_CPU(...)                                             \
  do {                                                                     \
    switch (::mmlaplace::cpu_capability()) {                               \
      case ::mmlaplace::CpuCapability::avx512: avx512::__VA_ARGS__; break; \
      case ::mmlaplace::CpuCapability::avx2: avx2::__VA_ARGS__; break;     \
      default: plain::__VA_ARGS__;                                         \
    }                                                                      \
  } while (false)
#else
#define MMLAPLACE_FOR_CPU(...) plain::__VA_ARGS__
#endif
#endif  // MMLAPLACE_INLINE

#if !defined(MMLAPLACE_VECTOR_BYTES) || MMLAPLACE_VECTOR_BYTES == 16
namespace mmlaplace {
namespace plain {
constexpr int kBytes = 16;  // the vectors of SSE2 and NEON
#include MMLAPLACE_KERNELS
}  // namespace plain
}  // namespace mmlaplace
#endif

#if defined(__x86_64__)

#if !defined(MMLAPLACE_VECTOR_BYTES) || MMLAPLACE_VECTOR_BYTES == 32
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace mmlaplace {
namespace avx2 {
constexpr int kBytes = 32;
#define MMLAPLACE_AVX2
#include MMLAPLACE_KERNELS
#undef MMLAPLACE_AVX2
}  // namespace avx2
}  // namespace mmlaplace
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

#if !defined(MMLAPLACE_VECTOR_BYTES) || MMLAPLACE_VECTOR_BYTES == 64
#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")
#endif
namespace mmlaplace {
namespace avx512 {
constexpr int kBytes = 64;
#define MMLAPLACE_AVX512
#include MMLAPLACE_KERNELS
#undef MMLAPLACE_AVX512
}  // namespace avx512
}  // namespace mmlaplace
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

#endif  // __x86_64__
#undef MMLAPLACE_KERNELS
