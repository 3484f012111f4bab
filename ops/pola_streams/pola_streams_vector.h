// Included once per instruction set; see cpu_dispatch.h.
//
// Tokens are lanes: rows[channel][token] of a tile of kTile tokens.
#include "../common/cpu/token_rows.h"
// After token_rows.h, which has the vectors.
#include "../common/cpu/products.h"
#include "../signed_powers/powers.h"

// features[c] and features[dims + c] are the powers of both parts of channel c.
inline void feature_rows(const float* rows, int64_t count, int64_t dims, const float* power,
                         const float* shift, float* features) {
  using V = Vec<float>;
  for (int64_t c = 0; c < dims; ++c) {
    const V power_of = broadcast<V>(power[c]), shift_of = broadcast<V>(shift[c]);
    for (int64_t t = 0; t < count; t += Traits<V>::lanes) {
      V positive, negative;
      powers(load<V>(rows + c * kTile + t), power_of, shift_of, &positive, &negative);
      store(features + c * kTile + t, positive);
      store(features + (dims + c) * kTile + t, negative);
    }
  }
}

// Divides the channels of both streams by their normalisers, the last two rows, plus eps.
inline void normalize_rows(int64_t count, int64_t dims, float eps, float* rows) {
  using V = Vec<float>;
  const int64_t half = (dims + 1) / 2;
  for (int64_t t = 0; t < count; t += Traits<V>::lanes) {
    for (int64_t stream = 0; stream < 2; ++stream) {
      const V normalizer = load<V>(rows + (dims + stream) * kTile + t) + eps;
      const int64_t end = stream ? dims : half;
      for (int64_t c = stream * half; c < end; ++c) {
        float* value = rows + c * kTile + t;
        store(value, load<V>(value) / normalizer);
      }
    }
  }
}

// A tile of tokens: rows are (d, kTile), features (2d, kTile), and the result (d + 2, kTile).
inline void stream_rows(const float* rows, int64_t count, int64_t dims, const float* power,
                        const float* shift, const float* sums, float eps, float* features,
                        float* result) {
  feature_rows(rows, count, dims, power, shift, features);
  product<false, false>(sums, dims + 2, features, kTile, dims + 2, vectors<float>(count), 2 * dims,
                        result, kTile);
  normalize_rows(count, dims, eps, result);
}
