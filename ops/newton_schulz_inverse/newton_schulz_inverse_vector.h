// Included once per instruction set; see cpu_dispatch.h.
//
// The inner loops of newton_schulz_inverse_cpu.cpp. Matrices are row-major, with rows of `stride`
// values. The padding of rows and columns is 0 and stays 0.
#include "../common/cpu/simd.h"

// target = residual ? I - a b : a + a b, for kRows rows and Panels * lanes columns.
template <bool Residual, int Panels, class T>
MMLAPLACE_INLINE void product_tile(const T* a, const T* b, T* target, int64_t m, int64_t stride,
                                   int64_t row, int64_t column) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  V sums[kRows][Panels] = {};
  for (int64_t k = 0; k < m; ++k) {
    for (int64_t r = 0; r < kRows; ++r) {
      const V value = broadcast<V>(a[(row + r) * stride + k]);
      for (int u = 0; u < Panels; ++u)
        sums[r][u] += value * load<V>(b + k * stride + column + u * lanes);
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    T* out = target + (row + r) * stride + column;
    const T* start = a + (row + r) * stride + column;
    for (int u = 0; u < Panels; ++u) {
      store(out + u * lanes, Residual ? -sums[r][u] : load<V>(start + u * lanes) + sums[r][u]);
    }
    if (Residual && row + r < m && row + r >= column && row + r < column + Panels * lanes)
      out[row + r - column] += 1;
  }
}

template <bool Residual, class T>
MMLAPLACE_INLINE void product(const T* a, const T* b, T* target, int64_t m, int64_t stride) {
  constexpr int64_t lanes = Vector<T>::lanes;
  constexpr int64_t most = kBytes == 32 ? 3 : 4;  // with AVX2, 16 sums would fill all registers
  int64_t count;
  for (int64_t p = 0; p < stride / lanes; p += count) {
    count = ceil_div(stride / lanes - p, ceil_div(stride / lanes - p, most));
    for (int64_t row = 0; row < m; row += kRows) {
      switch (count) {
        case 4: product_tile<Residual, 4>(a, b, target, m, stride, row, p * lanes); break;
        case 3: product_tile<Residual, 3>(a, b, target, m, stride, row, p * lanes); break;
        case 2: product_tile<Residual, 2>(a, b, target, m, stride, row, p * lanes); break;
        default: product_tile<Residual, 1>(a, b, target, m, stride, row, p * lanes);
      }
    }
  }
}

// The largest sum of the absolute values of a row. NaN if a value is NaN.
template <class T>
MMLAPLACE_INLINE T row_sum_norm(const T* matrix, int64_t m, int64_t stride) {
  using V = Vec<T>;
  T norm = 0;
  for (int64_t row = 0; row < m; ++row) {
    V sums = {};
    for (int64_t c = 0; c < stride; c += Vector<T>::lanes)
      sums += abs(load<V>(matrix + row * stride + c));
    T sum = 0;
    for (int lane = 0; lane < Vector<T>::lanes; ++lane) sum += sums[lane];
    norm = sum > norm || sum != sum ? sum : norm;  // also if sum is NaN
  }
  return norm;
}

// The inverse of `ridged` (m, m), in buffers[*which]. The other two buffers are scratch. All three
// are 0. The iteration starts at *scale times `ridged`, or at I / |ridged|_inf without a scale.
template <class T>
void invert(const T* ridged, const T* scale, T* const* buffers, int64_t m, int64_t stride,
            int64_t num_iters, int* which) {
  T *inverse = buffers[0], *next = buffers[1], *residual = buffers[2];
  if (scale != nullptr) {
    for (int64_t i = 0; i < m * stride; ++i) inverse[i] = *scale * ridged[i];
  } else {
    const T start = 1 / row_sum_norm(ridged, m, stride);
    for (int64_t i = 0; i < m; ++i) inverse[i * stride + i] = start;
  }
  T previous = std::numeric_limits<T>::infinity();
  *which = 0;
  for (int64_t step = 0; step < num_iters; ++step) {
    product<true>(ridged, inverse, residual, m, stride);
    product<false>(inverse, residual, next, m, stride);
    std::swap(inverse, next);
    *which = 1 - *which;
    const T norm = row_sum_norm(residual, m, stride);
    if (newton_schulz::is_last(norm, previous, std::numeric_limits<T>::epsilon())) break;
    previous = norm;
  }
}

// What newton_schulz_inverse_rules.h asks of a matrix W (m, m): its largest row sum and, if
// `halve`, the largest bound of a column of W^2. `scratch` is a matrix and a row.
template <class T>
void start_limits(const T* matrix, T* scratch, int64_t m, int64_t stride, bool halve, T* row_sum,
                  T* bound) {
  using V = Vec<T>;
  *row_sum = -std::numeric_limits<T>::infinity();
  *bound = 0;
  for (int64_t row = 0; row < m; ++row) {
    V sums = {};
    for (int64_t c = 0; c < stride; c += Vector<T>::lanes)
      sums += load<V>(matrix + row * stride + c);
    const T sum = sum_of_lanes(sums);
    *row_sum = sum > *row_sum || sum != sum ? sum : *row_sum;  // also if sum is NaN
  }
  if (!halve) return;
  product<true>(matrix, matrix, scratch, m, stride);  // I - W^2
  T* const norms = scratch + ceil_div(m, kRows) * kRows * stride;
  for (int64_t c = 0; c < stride; c += Vector<T>::lanes) {
    V sums = {};
    for (int64_t row = 0; row < m; ++row) sums += abs(load<V>(scratch + row * stride + c));
    store(norms + c, sums);
  }
  for (int64_t i = 0; i < m; ++i) {
    const T diagonal = scratch[i * stride + i];
    const T value = newton_schulz::start_bound(1 - diagonal, norms[i] - std::abs(diagonal));
    *bound = value > *bound ? value : *bound;
  }
}
