// Included once per instruction set; see cpu_dispatch.h.
//
// Tokens are lanes: rows[channel][token] of a tile of kTile tokens.
#include "../pola_streams/pola_streams_vector.h"

// In place: max(x, 0), or with `elu` elu(x) + 1. NaN stays.
inline void positive_rows(bool elu, int64_t count, int64_t dims, float* rows) {
  using V = Vec<float>;
  for (int64_t c = 0; c < dims; ++c) {
    for (int64_t t = 0; t < count; t += Traits<V>::lanes) {
      const V x = load<V>(rows + c * kTile + t);
      const V below = x > V{} ? V{} : x, above = x < V{} ? V{} : x;
      store(rows + c * kTile + t, elu ? exp2_nonpositive(below * kLog2E) + above : above);
    }
  }
}

// sums (features, stride) += features of keys times their values (tokens, stride).
inline void add_products(const float* features, int64_t count, int64_t rows, const float* values,
                         int64_t stride, float* sums) {
  product<true, true>(features, kTile, values, stride, rows, stride / Vector<float>::lanes, count,
                      sums, stride);
}

// result[c][token] = sum_r sums[r][first + c] features[r][token] for `columns` of the sums.
inline void products_of_queries(const float* sums, int64_t stride, const float* features,
                                int64_t count, int64_t columns, int64_t rows, float* result) {
  product<false, false>(sums, stride, features, kTile, columns, vectors<float>(count), rows, result,
                        kTile);
}

// Divides channels [begin, end) by a row of normalisers plus eps.
inline void divide_rows(int64_t count, int64_t begin, int64_t end, const float* normalizers,
                        float eps, float* rows) {
  using V = Vec<float>;
  for (int64_t t = 0; t < count; t += Traits<V>::lanes) {
    const V factor = 1.0f / (load<V>(normalizers + t) + eps);
    for (int64_t c = begin; c < end; ++c) {
      float* value = rows + c * kTile + t;
      store(value, load<V>(value) * factor);
    }
  }
}
