// What linear_attention computes with a value and where it finds it, for all devices, without ATen.
#pragma once

#include <cmath>

#include "../common/strided.h"

namespace mmlaplace {
namespace linear {

// The features that the op makes of q and k itself.
enum class Features { none, relu, elu_plus_one };

// NaN stays.
template <class T>
MMLAPLACE_HOST_DEVICE inline T feature(Features features, T x) {
  if (features == Features::none) return x;
  if (!(x <= T(0))) return features == Features::relu ? x : x + T(1);
  using std::exp;
  return features == Features::relu ? T(0) : exp(x);
}

// The derivative of a feature, by its value.
template <class T>
MMLAPLACE_HOST_DEVICE inline T slope(Features features, T value) {
  if (features == Features::relu) return value <= T(0) ? T(0) : T(1);
  return features == Features::none || value > T(1) ? T(1) : value;
}

// With two streams, the second half of the channels of v is mixed by queries whose halves of
// features are exchanged. This is done in the sums over the keys, which are smaller.
struct Streams {
  int count;  // 1 or 2
  int features, dims;

  MMLAPLACE_HOST_DEVICE int of(int channel) const {
    return count == 2 && channel >= (dims + 1) / 2 ? 1 : 0;
  }
  // The feature of a key that the feature of a query meets in a stream, and the reverse.
  MMLAPLACE_HOST_DEVICE int met(int feature, int stream) const {
    if (stream == 0 || feature >= features) return feature;
    return feature < features / 2 ? feature + features / 2 : feature - features / 2;
  }
};

}  // namespace linear
}  // namespace mmlaplace
