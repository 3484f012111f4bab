// Compiles the file MMLAPLACE_KERNELS once for each instruction set, in the namespaces
// mmlaplace::plain, ::avx2 and ::avx512; MMLAPLACE_FOR_CPU then calls the one for this machine. No
// -march flag is needed, and no function of a header compiled for AVX-512 can end up elsewhere: all
// headers come before.
#include <ATen/Version.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef MMLAPLACE_INLINE
#define MMLAPLACE_INLINE static inline __attribute__((always_inline))

namespace mmlaplace {

enum class CpuCapability { plain, avx2, avx512 };

// What torch found at start; its environment variable ATEN_CPU_CAPABILITY=default|avx2|avx512
// holds for us too.
inline CpuCapability cpu_capability() {
  static const CpuCapability capability = [] {
    const std::string name = at::get_cpu_capability();
    if (name == "AVX512") return CpuCapability::avx512;
    if (name == "AVX2") return CpuCapability::avx2;
    return CpuCapability::plain;
  }();
  return capability;
}

inline int vector_bytes() {
  switch (cpu_capability()) {
    case CpuCapability::avx512: return 64;
    case CpuCapability::avx2: return 32;
    default: return 16;
  }
}

}  // namespace mmlaplace

#if defined(__x86_64__)
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

namespace mmlaplace {
namespace plain {
constexpr int kBytes = 16;  // SSE2 or NEON
#include MMLAPLACE_KERNELS
}  // namespace plain
}  // namespace mmlaplace

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace mmlaplace {
namespace avx2 {
constexpr int kBytes = 32;
#define MMLAPLACE_SIGN_INSTRUCTION  // only in AVX2
#include MMLAPLACE_KERNELS
#undef MMLAPLACE_SIGN_INSTRUCTION
}  // namespace avx2
}  // namespace mmlaplace
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")
#endif
namespace mmlaplace {
namespace avx512 {
constexpr int kBytes = 64;
#include MMLAPLACE_KERNELS
}  // namespace avx512
}  // namespace mmlaplace
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
#undef MMLAPLACE_KERNELS
