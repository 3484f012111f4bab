// Included once per instruction set; see cpu_dispatch.h.
//
// The inner loops of cholesky_inverse_cpu.cpp. Matrices are row-major, with rows of `stride`
// values. Of a symmetric matrix only the upper triangle is right.
#include "../common/cpu/simd.h"

// The vector with `value` in lane `lane`, which may be none of its lanes.
template <class V>
MMLAPLACE_INLINE V with_lane(V vector, int64_t lane, typename Traits<V>::element value) {
  using Integer = typename Traits<V>::Integer;
  typename Traits<V>::bits lanes;
  for (int i = 0; i < Traits<V>::lanes; ++i) lanes[i] = i;
  return lanes == static_cast<Integer>(lane) ? broadcast<V>(value) : vector;
}

// matrix -= sum_t scaled_t rows_t^T, for kRows rows and Panels * lanes columns. The products are
// summed first, since each subtraction rounds the matrix.
template <int Panels, class T>
MMLAPLACE_INLINE void subtract_tile(T* matrix, const T* rows, const T* scaled, int64_t count,
                                    int64_t stride, int64_t row, int64_t column) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  V sums[kRows][Panels] = {};
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t r = 0; r < kRows; ++r) {
      const V value = broadcast<V>(scaled[t * stride + row + r]);
      for (int u = 0; u < Panels; ++u)
        sums[r][u] += value * load<V>(rows + t * stride + column + u * lanes);
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    T* const target = matrix + (row + r) * stride + column;
    for (int u = 0; u < Panels; ++u)
      store(target + u * lanes, load<V>(target + u * lanes) - sums[r][u]);
  }
}

// The same for the upper triangle of the whole matrix.
template <class T>
void subtract(T* matrix, const T* rows, const T* scaled, int64_t count, int64_t m, int64_t stride) {
  constexpr int64_t lanes = Vector<T>::lanes;
  constexpr int64_t most = kBytes == 32 ? 3 : 4;  // with AVX2, 16 sums would fill all registers
  for (int64_t row = 0; row < m; row += kRows) {
    int64_t panels;
    for (int64_t column = row / lanes * lanes; column < stride; column += panels * lanes) {
      const int64_t left = (stride - column) / lanes;
      panels = ceil_div(left, ceil_div(left, most));
      switch (panels) {
        case 4: subtract_tile<4>(matrix, rows, scaled, count, stride, row, column); break;
        case 3: subtract_tile<3>(matrix, rows, scaled, count, stride, row, column); break;
        case 2: subtract_tile<2>(matrix, rows, scaled, count, stride, row, column); break;
        default: subtract_tile<1>(matrix, rows, scaled, count, stride, row, column);
      }
    }
  }
}

// Moves rows first to first + count of a symmetric matrix to `rows`, and leaves zeros in these rows
// and columns.
template <class T>
MMLAPLACE_INLINE void take_rows(T* matrix, T* rows, int64_t first, int64_t count, int64_t stride) {
  for (int64_t t = 0; t < count; ++t) {
    T* const row = matrix + (first + t) * stride;
    for (int64_t j = first; j < stride; ++j) rows[t * stride + j] = row[j];
  }
  // What is below the diagonal is in columns.
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t s = 0; s < t; ++s) rows[t * stride + first + s] = rows[s * stride + first + t];
  }
  for (int64_t j = 0; j < first; ++j) {
    T* const values = matrix + j * stride + first;
    for (int64_t t = 0; t < count; ++t) rows[t * stride + j] = values[t];
    for (int64_t t = 0; t < count; ++t) values[t] = 0;
  }
  for (int64_t i = first * stride; i < (first + count) * stride; ++i) matrix[i] = 0;
}

// Sweeps `first` to first + count, at most kBlock. Until all of them are known, only the rows that
// they take are brought up to date. Returns whether all pivots are positive and finite.
template <class T>
MMLAPLACE_INLINE bool sweep_rows(T* matrix, T* rows, T* scaled, int64_t first, int64_t count,
                                 int64_t m, int64_t stride) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  bool positive = true;
  take_rows(matrix, rows, first, count, stride);
  for (int64_t t = 0; t < count; ++t) {
    T* const row = rows + t * stride;
    const int64_t k = first + t;
    const T reciprocal = 1 / row[k];
    // Neither of a negative number, 0, an infinity or NaN.
    positive &= reciprocal > 0 && reciprocal < std::numeric_limits<T>::infinity();
    T factors[kBlock];
    for (int64_t s = t + 1; s < count; ++s) factors[s] = row[first + s] * reciprocal;
    for (int64_t c = 0; c < stride; c += lanes) {
      const V values = with_lane(load<V>(row + c), k - c, T(-1));
      store(row + c, values);
      store(scaled + t * stride + c, values * broadcast<V>(reciprocal));
      for (int64_t s = t + 1; s < count; ++s) {
        T* const other = rows + s * stride + c;
        store(other, with_lane(load<V>(other), k - c, T(0)) - broadcast<V>(factors[s]) * values);
      }
    }
  }
  // Columns of later sweeps have had their part of the earlier ones.
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t s = t + 1; s < count; ++s)
      rows[t * stride + first + s] = scaled[t * stride + first + s] = 0;
  }
  subtract(matrix, rows, scaled, count, m, stride);
  return positive;
}

// Replaces the symmetric matrix by minus its inverse. `positive` is whether all pivots were.
// `rows` and `scaled` are scratch, (kBlock, stride) each.
//
// The first sweep is by itself. Where all landmarks nearly coincide it takes almost all of the
// matrix away, and what is left must not be rounded together with that.
template <class T>
void sweep(T* matrix, T* rows, T* scaled, int64_t m, int64_t stride, bool* positive) {
  *positive = sweep_rows(matrix, rows, scaled, 0, 1, m, stride);
  int64_t first = 1;
  for (; first + kBlock <= m; first += kBlock)  // of a size that the compiler knows
    *positive &= sweep_rows(matrix, rows, scaled, first, kBlock, m, stride);
  if (first < m) *positive &= sweep_rows(matrix, rows, scaled, first, m - first, m, stride);
}
