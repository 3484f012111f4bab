// The names of tensor.h in a torch before 2.10, where they are ATen's.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/ivalue.h>
#include <torch/library.h>

#include <string>
#include <utility>

namespace mmlaplace {

using at::Tensor;
using c10::ScalarType;
using IntArrayRef = at::IntArrayRef;
using StringView = c10::string_view;
// c10::optional before torch 2.3, std::optional since then.
using OptionalTensor = decltype(std::declval<c10::IValue&>().toOptional<at::Tensor>());
using OptionalDouble = decltype(std::declval<c10::IValue&>().toOptional<double>());
using OptionalInt = decltype(std::declval<c10::IValue&>().toOptional<int64_t>());

inline Tensor empty(IntArrayRef sizes, const Tensor& like, ScalarType type) {
  return at::empty(sizes, like.options().dtype(type));
}
inline Tensor empty(IntArrayRef sizes, const Tensor& like) {
  return at::empty(sizes, like.options());
}
inline Tensor zeros(IntArrayRef sizes, const Tensor& like, ScalarType type) {
  return at::zeros(sizes, like.options().dtype(type));
}
inline Tensor zeros(IntArrayRef sizes, const Tensor& like) {
  return at::zeros(sizes, like.options());
}

namespace host {

inline std::string cpu_capability() { return at::get_cpu_capability(); }
inline int64_t num_threads() { return at::get_num_threads(); }
template <class F>
void parallel_for(int64_t count, int64_t grain, const F& f) {
  at::parallel_for(0, count, grain, f);
}

}  // namespace host
}  // namespace mmlaplace

#define MMLAPLACE_CHECK TORCH_CHECK
#define MMLAPLACE_NAMESPACE(ns) static_assert(true, "the macros below have it")
#define MMLAPLACE_LIBRARY_FRAGMENT TORCH_LIBRARY_FRAGMENT
#define MMLAPLACE_LIBRARY_IMPL TORCH_LIBRARY_IMPL
#define MMLAPLACE_KERNEL(...) __VA_ARGS__
