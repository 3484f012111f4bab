// Tensors, the few operations on them that the ops need, and their registration.
//
// From torch 2.10 on this is libtorch's stable ABI: C functions that later versions keep, so that
// one compiled library serves them all. Before, the same names are ATen's. Nothing else in this
// folder includes a header of torch.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/version.h>
#endif

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 10)
#include "tensor_stable.h"
#else
#include "tensor_aten.h"
#endif

namespace mmlaplace {

// The type of sums: fp64 for fp64, and fp32 for the rest.
template <class S>
using Wide = std::conditional_t<std::is_same<S, double>::value, double, float>;

template <class T>
constexpr ScalarType type_of() {
  static_assert(std::is_same<T, float>::value || std::is_same<T, double>::value, "a type of sums");
  return std::is_same<T, double>::value ? ScalarType::Double : ScalarType::Float;
}

// Of fp16 and bf16 it is fp32.
inline ScalarType wide(ScalarType type) {
  return type == ScalarType::Half || type == ScalarType::BFloat16 ? ScalarType::Float : type;
}

inline void check_floating(const char* op, const char* name, const Tensor& tensor) {
  const ScalarType type = wide(tensor.scalar_type());
  MMLAPLACE_CHECK(type == ScalarType::Float || type == ScalarType::Double, op, ": ", name,
                  " must be fp16, bf16, fp32 or fp64, got ", tensor.scalar_type());
}

// NaN is out of range too.
inline void check_positive(const char* op, const char* name, double value) {
  MMLAPLACE_CHECK(value > 0 && value < std::numeric_limits<double>::infinity(), op, ": ", name,
                  " must be positive and finite, got ", value);
}
inline void check_not_negative(const char* op, const char* name, double value) {
  MMLAPLACE_CHECK(value >= 0 && value < std::numeric_limits<double>::infinity(), op, ": ", name,
                  " must be finite and not negative, got ", value);
}

}  // namespace mmlaplace

// Calls a function without parameters, for which `scalar_t` is the C++ type of a ScalarType.
#define MMLAPLACE_DISPATCH(TYPE, OP, ...)                                                \
  [&] {                                                                                  \
    const auto dispatched = TYPE;                                                        \
    if (dispatched == ::mmlaplace::ScalarType::Float) {                                  \
      using scalar_t = float;                                                            \
      return __VA_ARGS__();                                                              \
    }                                                                                    \
    if (dispatched == ::mmlaplace::ScalarType::Double) {                                 \
      using scalar_t = double;                                                           \
      return __VA_ARGS__();                                                              \
    }                                                                                    \
    if (dispatched == ::mmlaplace::ScalarType::Half) {                                   \
      using scalar_t = c10::Half;                                                        \
      return __VA_ARGS__();                                                              \
    }                                                                                    \
    MMLAPLACE_CHECK(dispatched == ::mmlaplace::ScalarType::BFloat16, OP,                 \
                    ": the tensors must be fp16, bf16, fp32 or fp64, got ", dispatched); \
    using scalar_t = c10::BFloat16;                                                      \
    return __VA_ARGS__();                                                                \
  }()
