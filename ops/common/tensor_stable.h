// The names of tensor.h by libtorch's stable ABI, for torch 2.10 and later.
//
// A tensor keeps the addresses of its data, sizes and strides, as each question to libtorch is a
// call. What is not there as a C function goes through the dispatcher by its name in PyTorch.
#pragma once

// The oldest torch that the library serves.
#ifndef TORCH_TARGET_VERSION
#define TORCH_TARGET_VERSION (((0ULL + 2) << 56) | ((0ULL + 10) << 48))
#endif

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#define MMLAPLACE_CHECK(condition, ...)                            \
  do {                                                             \
    if (!(condition)) {                                            \
      throw std::runtime_error(::mmlaplace::text_of(__VA_ARGS__)); \
    }                                                              \
  } while (false)

namespace mmlaplace {

template <class... Parts>
std::string text_of(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

using torch::headeronly::ScalarType;
using StringView = std::string_view;

inline void check_status(AOTITorchError status, const char* what) {
  MMLAPLACE_CHECK(status == AOTI_TORCH_SUCCESS, "mmlaplace: ", what, " failed in torch");
}

// A borrowed shape.
class IntArrayRef : public torch::headeronly::IntHeaderOnlyArrayRef {
 public:
  using Base = torch::headeronly::IntHeaderOnlyArrayRef;
  IntArrayRef(const int64_t* data, size_t size) : Base(data, size) {}
  IntArrayRef(const std::initializer_list<int64_t>& sizes) : Base(sizes) {}
  IntArrayRef(const std::vector<int64_t>& sizes) : Base(sizes) {}
  IntArrayRef(Base base) : Base(base) {}
  IntArrayRef slice(size_t first, size_t count) const { return Base::slice(first, count); }
  IntArrayRef slice(size_t first) const { return Base::slice(first); }
  bool operator==(const IntArrayRef& other) const { return equals(other); }
  friend std::ostream& operator<<(std::ostream& out, const IntArrayRef& sizes) {
    out << "[";
    for (size_t i = 0; i < sizes.size(); ++i) out << (i > 0 ? ", " : "") << sizes[i];
    return out << "]";
  }
};

struct Device {
  int32_t type, index;
  bool operator==(const Device& other) const { return type == other.type && index == other.index; }
  friend std::ostream& operator<<(std::ostream& out, const Device& device) {
    if (device.type == aoti_torch_device_type_cpu()) return out << "cpu";
    if (device.type < 0) return out << "no device";
    return out << "cuda:" << device.index;
  }
};

class Tensor {
 public:
  Tensor() = default;  // undefined
  // Takes the handle over.
  explicit Tensor(AtenTensorHandle handle)
      : handle_(handle, [](AtenTensorHandle owned) { aoti_torch_delete_tensor_object(owned); }) {
    bool defined = false;
    check_status(aoti_torch_is_defined(handle, &defined), "is_defined");
    if (!defined) {
      handle_.reset();
      return;
    }
    check_status(aoti_torch_get_dim(handle, &dim_), "dim");
    check_status(aoti_torch_get_sizes(handle, &sizes_), "sizes");
    check_status(aoti_torch_get_strides(handle, &strides_), "strides");
    check_status(aoti_torch_get_data_ptr(handle, &data_), "data_ptr");
    check_status(aoti_torch_get_dtype(handle, &dtype_), "dtype");
  }

  AtenTensorHandle handle() const { return handle_.get(); }
  bool defined() const { return handle_ != nullptr; }
  int64_t dim() const { return dim_; }
  int64_t size(int64_t axis) const { return sizes_[axis < 0 ? axis + dim_ : axis]; }
  int64_t stride(int64_t axis) const { return strides_[axis < 0 ? axis + dim_ : axis]; }
  IntArrayRef sizes() const { return {sizes_, static_cast<size_t>(dim_)}; }
  IntArrayRef strides() const { return {strides_, static_cast<size_t>(dim_)}; }
  int64_t numel() const {
    int64_t count = 1;
    for (int64_t axis = 0; axis < dim_; ++axis) count *= sizes_[axis];
    return count;
  }
  ScalarType scalar_type() const {
    return torch::stable::detail::to<ScalarType>(torch::stable::detail::from(dtype_));
  }
  Device device() const {
    if (!defined()) return {-1, -1};
    Device device{};
    check_status(aoti_torch_get_device_type(handle(), &device.type), "device_type");
    check_status(aoti_torch_get_device_index(handle(), &device.index), "device_index");
    return device;
  }
  int32_t get_device() const { return device().index; }
  bool is_contiguous() const {
    bool contiguous = false;
    check_status(aoti_torch_is_contiguous(handle(), &contiguous), "is_contiguous");
    return contiguous;
  }
  void* data_ptr() const { return data_; }
  template <class T>
  T* data_ptr() const {
    return static_cast<T*>(data_);
  }

  // As in ATen.
  Tensor to(ScalarType type) const;
  Tensor contiguous() const;
  Tensor clone() const;
  Tensor reshape(IntArrayRef sizes) const;
  Tensor view(IntArrayRef sizes) const;
  Tensor transpose(int64_t first, int64_t second) const;
  Tensor permute(IntArrayRef axes) const;
  Tensor narrow(int64_t axis, int64_t first, int64_t length) const;
  Tensor operator[](int64_t index) const;
  Tensor squeeze(int64_t axis) const;
  Tensor unsqueeze(int64_t axis) const;
  Tensor sum(IntArrayRef axes) const;
  Tensor sum(int64_t axis) const;
  Tensor amax(int64_t axis, bool keepdim = false) const;
  Tensor zero_() const;
  Tensor copy_(const Tensor& source) const;

 private:
  std::shared_ptr<AtenTensorOpaque> handle_;
  int64_t dim_ = 0;
  int64_t *sizes_ = nullptr, *strides_ = nullptr;
  void* data_ = nullptr;
  int32_t dtype_ = 0;
};

using OptionalTensor = std::optional<Tensor>;
using OptionalDouble = std::optional<double>;
using OptionalInt = std::optional<int64_t>;

// Values as libtorch passes them.
inline StableIValue boxed(const Tensor& tensor) {
  AtenTensorHandle handle = nullptr;
  check_status(aoti_torch_new_tensor_handle(tensor.handle(), &handle), "new_tensor_handle");
  return torch::stable::detail::from(handle);
}
inline StableIValue boxed(IntArrayRef sizes) {
  return torch::stable::detail::from(static_cast<const IntArrayRef::Base&>(sizes));
}
template <class T>
StableIValue boxed(const T& value) {
  return torch::stable::detail::from(value);
}

template <class T>
struct Unboxed {
  static T from(StableIValue value) { return torch::stable::detail::to<T>(value); }
};
template <>
struct Unboxed<Tensor> {
  static Tensor from(StableIValue value) {
    return Tensor(torch::stable::detail::to<AtenTensorHandle>(value));
  }
};
template <>
struct Unboxed<OptionalTensor> {
  static OptionalTensor from(StableIValue value) {
    const auto owned = torch::stable::detail::to<StableIValue*>(value);
    if (owned == nullptr) return std::nullopt;
    const std::unique_ptr<StableIValue> inner(owned);
    return Unboxed<Tensor>::from(*inner);
  }
};
template <>
struct Unboxed<StringView> {  // torch's own conversion, in torch 2.11, does not free the text
  static std::string from(StableIValue value) {
    const auto handle = torch::stable::detail::to<StringHandle>(value);
    size_t length = 0;
    const char* data = nullptr;
    check_status(torch_string_length(handle, &length), "string_length");
    check_status(torch_string_c_str(handle, &data), "string_c_str");
    std::string text(data, length);
    check_status(torch_delete_string(handle), "delete_string");
    return text;
  }
};

// A function of tensors and numbers as libtorch calls it, on a stack of values.
template <auto function>
struct Kernel;
template <class Result, class... Parameters, Result (*function)(Parameters...)>
struct Kernel<function> {
  static void call(StableIValue* stack, uint64_t, uint64_t) {
    call(stack, std::index_sequence_for<Parameters...>());
  }

 private:
  template <class T>
  using Plain = std::remove_cv_t<std::remove_reference_t<T>>;

  template <size_t... index>
  static void call(StableIValue* stack, std::index_sequence<index...>) {
    // In braces, from left to right.
    auto arguments = std::tuple<decltype(Unboxed<Plain<Parameters>>::from({}))...>{
        Unboxed<Plain<Parameters>>::from(stack[index])...};
    if constexpr (std::is_void<Result>::value) {
      std::apply(function, arguments);
    } else {
      leave(stack, std::apply(function, arguments));
    }
  }
  template <class T>
  static void leave(StableIValue* stack, const T& result) {
    stack[0] = boxed(result);
  }
  template <class... T>
  static void leave(StableIValue* stack, const std::tuple<T...>& results) {
    std::apply([&](const T&... result) { ((*stack++ = boxed(result)), ...); }, results);
  }
};

// Calls an operation of PyTorch by its name. It takes all arguments of its schema.
template <class... Arguments>
Tensor call(const char* name, const char* overload, const Arguments&... arguments) {
  StableIValue stack[] = {boxed(arguments)...};
  check_status(torch_call_dispatcher(name, overload, stack, TORCH_ABI_VERSION), name);
  return Unboxed<Tensor>::from(stack[0]);
}

inline std::vector<int64_t> contiguous_strides(IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t axis = sizes.size(); axis-- > 0; step *= std::max<int64_t>(sizes[axis], 1)) {
    strides[axis] = step;
  }
  return strides;
}

inline Tensor empty(IntArrayRef sizes, const Tensor& like, ScalarType type) {
  const std::vector<int64_t> strides = contiguous_strides(sizes);
  const Device device = like.device();
  AtenTensorHandle handle = nullptr;
  check_status(aoti_torch_empty_strided(
                   static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
                   torch::stable::detail::to<int32_t>(torch::stable::detail::from(type)),
                   device.type, device.index, &handle),
               "empty");
  return Tensor(handle);
}
inline Tensor empty(IntArrayRef sizes, const Tensor& like) {
  return empty(sizes, like, like.scalar_type());
}
inline Tensor zeros(IntArrayRef sizes, const Tensor& like, ScalarType type) {
  const Tensor tensor = empty(sizes, like, type);
  check_status(aoti_torch_zero_(tensor.handle()), "zero_");
  return tensor;
}
inline Tensor zeros(IntArrayRef sizes, const Tensor& like) {
  return zeros(sizes, like, like.scalar_type());
}
// A tensor without axes, for operations whose schemas take tensors.
inline Tensor number(double value, const Tensor& like) {
  const Device device = like.device();
  int32_t type =
      torch::stable::detail::to<int32_t>(torch::stable::detail::from(like.scalar_type()));
  int32_t device_type = device.type;
  AtenTensorHandle handle = nullptr;
  check_status(aoti_torch_aten_full(nullptr, 0, value, &type, nullptr, &device_type, device.index,
                                    nullptr, &handle),
               "full");
  return Tensor(handle);
}

inline Tensor Tensor::to(ScalarType type) const {
  if (type == scalar_type()) return *this;
  return call("aten::to", "dtype", *this, type, false, false,
              std::optional<torch::headeronly::MemoryFormat>());
}
inline Tensor Tensor::contiguous() const {
  if (is_contiguous()) return *this;
  return call("aten::contiguous", "", *this, torch::headeronly::MemoryFormat::Contiguous);
}
inline Tensor Tensor::clone() const {
  return call("aten::clone", "", *this, std::optional<torch::headeronly::MemoryFormat>());
}
inline Tensor Tensor::reshape(IntArrayRef sizes) const {
  if (is_contiguous()) return view(sizes);
  return call("aten::reshape", "", *this, sizes);
}
// Of contiguous tensors by a C function, which is quicker than the dispatcher.
inline Tensor Tensor::view(IntArrayRef sizes) const {
  if (!is_contiguous() || numel() == 0) return call("aten::view", "", *this, sizes);
  std::vector<int64_t> lengths(sizes.begin(), sizes.end());
  int64_t others = 1;
  for (const int64_t length : lengths) others *= length < 0 ? 1 : length;
  for (int64_t& length : lengths) length = length < 0 ? numel() / others : length;
  const std::vector<int64_t> strides = contiguous_strides(lengths);
  AtenTensorHandle handle = nullptr;
  check_status(aoti_torch__reinterpret_tensor(this->handle(), static_cast<int64_t>(lengths.size()),
                                              lengths.data(), strides.data(), 0, &handle),
               "view");
  const Tensor tensor(handle);
  MMLAPLACE_CHECK(tensor.numel() == numel(), "no view of ", this->sizes(), " as ", sizes);
  return tensor;
}
inline Tensor Tensor::transpose(int64_t first, int64_t second) const {
  return call("aten::transpose", "int", *this, first, second);
}
inline Tensor Tensor::permute(IntArrayRef axes) const {
  return call("aten::permute", "", *this, axes);
}
inline Tensor Tensor::narrow(int64_t axis, int64_t first, int64_t length) const {
  return call("aten::narrow", "", *this, axis, first, length);
}
inline Tensor Tensor::operator[](int64_t index) const {
  return call("aten::select", "int", *this, int64_t{0}, index);
}
inline Tensor Tensor::squeeze(int64_t axis) const {
  return call("aten::squeeze", "dim", *this, axis);
}
inline Tensor Tensor::unsqueeze(int64_t axis) const {
  return call("aten::unsqueeze", "", *this, axis);
}
inline Tensor Tensor::sum(IntArrayRef axes) const {
  return call("aten::sum", "dim_IntList", *this,
              std::make_optional<IntArrayRef::Base>(static_cast<const IntArrayRef::Base&>(axes)),
              false, std::optional<ScalarType>());
}
inline Tensor Tensor::sum(int64_t axis) const { return sum(IntArrayRef{axis}); }
inline Tensor Tensor::amax(int64_t axis, bool keepdim) const {
  return call("aten::amax", "", *this, IntArrayRef{axis}, keepdim);
}
inline Tensor Tensor::zero_() const {
  check_status(aoti_torch_zero_(handle()), "zero_");
  return *this;
}
inline Tensor Tensor::copy_(const Tensor& source) const {
  return call("aten::copy_", "", *this, source, false);
}

inline Tensor operator*(const Tensor& a, const Tensor& b) {
  return call("aten::mul", "Tensor", a, b);
}
inline Tensor operator*(const Tensor& a, double b) { return a * number(b, a); }
inline Tensor operator+(const Tensor& a, const Tensor& b) {
  AtenTensorHandle handle = nullptr;
  // a - (-1) b: subtraction is the one of the two among the C functions.
  check_status(aoti_torch_aten_subtract_Tensor(a.handle(), b.handle(), -1, &handle), "add");
  return Tensor(handle);
}

namespace host {

// The one that torch chose when it started, from its variable ATEN_CPU_CAPABILITY and the machine.
inline std::string cpu_capability() {
#if defined(__x86_64__)
  const char* wanted = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string most = wanted == nullptr ? "avx512" : wanted;
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw");
  if (avx512 && most != "avx2" && most != "default") return "AVX512";
  if (avx2 && most != "default") return "AVX2";
#endif
  return "DEFAULT";
}
inline int64_t num_threads() { return torch::stable::get_num_threads(); }
template <class F>
void parallel_for(int64_t count, int64_t grain, const F& f) {
  torch::stable::parallel_for(0, count, grain, f);
}

}  // namespace host
}  // namespace mmlaplace

// A library has the namespace of its ops as text with room behind it, where torch's own macros have
// a literal: .dev_scripts/make_hf_kernel.py writes another one into a copy. Hidden, so that each of
// two copies in a process reads its own.
#define MMLAPLACE_NAMESPACE_TEXT "mmlaplace built for namespace="
#define MMLAPLACE_NAMESPACE(ns)                                                                 \
  extern "C" __attribute__((used, visibility("hidden"))) const char ns##_build_namespace[128] = \
      MMLAPLACE_NAMESPACE_TEXT #ns

#define MMLAPLACE_LIBRARY_(kind, ns, key, library, id)                                         \
  extern "C" __attribute__((visibility("hidden"))) const char ns##_build_namespace[128];       \
  static void C10_CONCATENATE(register_, id)(torch::stable::detail::StableLibrary&);           \
  static const torch::stable::detail::StableTorchLibraryInit C10_CONCATENATE(registered_, id)( \
      torch::stable::detail::StableLibrary::Kind::kind, &C10_CONCATENATE(register_, id),       \
      ns##_build_namespace + sizeof(MMLAPLACE_NAMESPACE_TEXT) - 1, key, __FILE__, __LINE__);   \
  static void C10_CONCATENATE(register_, id)(torch::stable::detail::StableLibrary & library)
#define MMLAPLACE_LIBRARY_FRAGMENT(ns, library) \
  MMLAPLACE_LIBRARY_(FRAGMENT, ns, nullptr, library, __LINE__)
#define MMLAPLACE_LIBRARY_IMPL(ns, key, library) \
  MMLAPLACE_LIBRARY_(IMPL, ns, #key, library, __LINE__)
#define MMLAPLACE_KERNEL(...) (::mmlaplace::Kernel<&__VA_ARGS__>::call)
