// The host code of landmark_attention on a GPU: nystrom_attention with landmarks that are means of
// cells of the keys, and the exact inverse of their kernel, in five launches. `Device` launches the
// kernels, see common/cuda/launch.h.
#pragma once

#include "../pooled_landmarks/pooled_landmarks_passes.h"
#include "nystrom_attention_passes.h"

namespace mmlaplace {
namespace nystrom {

template <class Device>
Tensor landmark_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                          const OptionalTensor& gamma, const OptionalTensor& rotary,
                          StringView form, int64_t height, int64_t width, OptionalInt rows,
                          OptionalInt columns, OptionalInt ratio, StringView kernel,
                          double bandwidth, double ridge, OptionalDouble whitening_eps) {
  check_not_negative("landmark_attention", "ridge", ridge);
  const Tensor landmarks =
      pooled::forward<Device>(k, rotary, form, height, width, rows, columns, ratio);
  const int64_t m = landmarks.size(2);
  check_rows("landmark_attention", m, kMostJoined, "GPU");
  Inputs inputs(landmarks, empty({k.size(0), k.size(1), m, m}, landmarks),
                gamma.has_value() ? *gamma : Tensor(), rotary, bandwidth, whitening_eps, form);
  inputs.ridge = ridge;
  Tensor out;
  with_metric("landmark_attention", kernel, bandwidth, [&](auto metric) {
    out = std::get<0>(Attention<Device, decltype(metric)>::forward(q, k, v, inputs));
  });
  return out;
}

}  // namespace nystrom
}  // namespace mmlaplace
