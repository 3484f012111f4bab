// The best instruction set of this machine, for hosts that do not tell it.
#pragma once

#include <cstdlib>
#include <string>

namespace mmlaplace {
namespace host {

// The variable that chooses for PyTorch chooses here, too.
inline std::string cpu_capability() {
  const char* wanted = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string most = wanted ? wanted : "avx512";
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw");
  if (avx512 && most == "avx512") return "AVX512";
  if (avx2 && most != "default") return "AVX2";
#endif
  return "DEFAULT";
}

}  // namespace host
}  // namespace mmlaplace
