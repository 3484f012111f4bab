// The host code of pooled_landmarks on a GPU. `Device` launches the kernels, see
// common/cuda/launch.h. There is no other CUDA here, so that tests can run this on a CPU.
#pragma once

#include "../common/tensor.h"

#include <cstdint>

#include "../common/pairwise.h"
#include "pooled_landmarks_device.cuh"
#include "pooled_landmarks_map.h"

namespace mmlaplace {
namespace pooled {

inline device::MapOfTokens map_for_gpu(const Map& map) {
  return {map.heads, map.width, map.rows, map.columns, static_cast<int>(map.dims)};
}

// Many heads read the angles often enough that a copy with the pairs of a token side by side would
// pay; for few it is one more launch. Where that changes was not measured.
constexpr int64_t kFewHeads = 16;

// (2, pairs, N)
template <class T>
Tensor angles(const OptionalTensor& rotary, const Map& map) {
  if (!rotary.has_value()) return {};
  if (map.batch_heads <= kFewHeads) return rotary->to(type_of<T>());
  return wide<T>(rotary->permute({2, 1, 0})).permute({2, 1, 0});
}
template <class T>
device::Turns<T> turns(const Tensor& angles, bool adjacent) {
  if (!angles.defined()) return {nullptr, 0, 0, 0, 0, adjacent};
  return {angles.data_ptr<T>(),
          angles.stride(0),
          angles.stride(1),
          angles.stride(2),
          static_cast<int>(angles.size(1)),
          adjacent};
}

template <class Device>
Tensor forward(const Tensor& k, const OptionalTensor& rotary, StringView form, int64_t height,
               int64_t width, OptionalInt rows, OptionalInt columns, OptionalInt ratio) {
  const bool adjacent = is_adjacent("pooled_landmarks", form);
  const Map map = map_of(k, rotary, height, width, rows, columns, ratio);
  const Device gpu(k);
  Tensor out;
  MMLAPLACE_DISPATCH(k.scalar_type(), "pooled_landmarks", [&] {
    using T = Wide<scalar_t>;
    out = empty({k.size(0), k.size(1), map.cells(), map.dims}, k, type_of<T>());
    if (out.numel() == 0) return;
    const Tensor table = angles<T>(rotary, map);
    gpu.launch("pooled_landmarks", device::pool_kernel<scalar_t, T>, map.batch_heads * map.cells(),
               device::kThreads, 0, map_for_gpu(map),
               static_cast<const scalar_t*>(k.data_ptr<scalar_t>()), strides_of(k),
               turns<T>(table, adjacent), out.data_ptr<T>());
  });
  return out;
}

template <class Device>
Tensor backward(const Tensor& grad, const Tensor& k, const OptionalTensor& rotary, StringView form,
                int64_t height, int64_t width, OptionalInt rows, OptionalInt columns,
                OptionalInt ratio) {
  const bool adjacent = is_adjacent("pooled_landmarks", form);
  const Map map = map_of(k, rotary, height, width, rows, columns, ratio);
  check_gradient(grad, k, map);
  const Device gpu(k);
  Tensor out = empty({k.size(0), k.size(2), map.heads, map.dims}, k);
  if (out.numel() == 0) return out.transpose(1, 2);
  MMLAPLACE_DISPATCH(k.scalar_type(), "pooled_landmarks", [&] {
    using T = Wide<scalar_t>;
    const Tensor table = angles<T>(rotary, map), grads = wide<T>(grad);
    const Tensor shares = empty({map.rows.count + map.columns.count}, grads);
    gpu.launch("pooled_landmarks", device::shares_kernel<T>,
               ceil_div(shares.numel(), device::kThreads), device::kThreads, 0, map_for_gpu(map),
               shares.data_ptr<T>());
    gpu.launch("pooled_landmarks", device::spread_kernel<scalar_t, T>,
               map.batch_heads * ceil_div(k.size(2), device::kSpreadTokens), device::kThreads, 0,
               map_for_gpu(map), static_cast<const T*>(grads.data_ptr<T>()),
               static_cast<const T*>(shares.data_ptr<T>()), turns<T>(table, adjacent),
               out.data_ptr<scalar_t>());
  });
  return out.transpose(1, 2);
}

}  // namespace pooled
}  // namespace mmlaplace
