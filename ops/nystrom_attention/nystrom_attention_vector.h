// Included once per instruction set; see cpu_dispatch.h.
//
// What nystrom_attention_cpu.cpp does with a tile of kTile tokens, which stays in the first caches.
// Inside of a tile, tokens are lanes: rows[channel][token] and tile[landmark][token]. So 49
// landmarks need no padding, and small matrices times a tile read the small matrix by broadcasts.
// T is the type of the buffers and of all sums, S that of the values in memory.
#include "../common/cpu/token_rows.h"
// After token_rows.h, which has the vectors.
#include "../common/cpu/products.h"
// Calls abs and sign of vectors.
#include "../common/metric_functions.h"

// A register tile of the kernel: landmarks, and vectors of tokens.
constexpr int kMarks = kBytes == 64 ? 6 : 5, kColumns = kBytes == 64 ? 4 : 2;
// A register tile of the kernel's gradient: landmarks. It has two channels.
constexpr int kGradientMarks = kBytes == 64 ? 4 : 2;

// ---- The kernel of a tile ---------------------------------------------------------------------

// tile[a][t] = 2^(exponent * distance(x_t, L_a)) - shift[a], for A landmarks and U vectors of
// tokens. Without Powers, it is exponent * distance(x_t, L_a). marks: [channel][landmark].
template <class Metric, bool Powers, int A, int U, class T>
MMLAPLACE_INLINE void kernel_block(const T* rows, const T* marks, int64_t stride, int64_t dims,
                                   T exponent, const T* shift, T* tile) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  V sums[A][U] = {};
  for (int64_t c = 0; c < dims; ++c) {
    V x[U];
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) x[u] = load<V>(rows + c * kTile + u * lanes);
#pragma GCC unroll 8
    for (int a = 0; a < A; ++a) {
      const V mark = broadcast<V>(marks[c * stride + a]);
#pragma GCC unroll 4
      for (int u = 0; u < U; ++u) sums[a][u] = accumulate(Metric{}, sums[a][u], x[u] - mark);
    }
  }
#pragma GCC unroll 8
  for (int a = 0; a < A; ++a) {
    const V minus = broadcast<V>(shift ? shift[a] : T(0));
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      const V value = sums[a][u] * exponent;
      store(tile + a * kTile + u * lanes, Powers ? exp2_nonpositive(value) - minus : value);
    }
  }
}

template <class Metric, bool Powers, int U, class T>
MMLAPLACE_INLINE void kernel_columns(const T* rows, const T* marks, int64_t stride, int64_t m,
                                     int64_t dims, T exponent, const T* shift, T* tile) {
  int64_t a = 0;
  for (; a + kMarks <= m; a += kMarks) {
    kernel_block<Metric, Powers, kMarks, U>(rows, marks + a, stride, dims, exponent,
                                            shift ? shift + a : nullptr, tile + a * kTile);
  }
  for (; a < m; ++a) {
    kernel_block<Metric, Powers, 1, U>(rows, marks + a, stride, dims, exponent,
                                       shift ? shift + a : nullptr, tile + a * kTile);
  }
}

// The kernel of `count` tokens, less the shift of each landmark. What is left of the last vector
// is 0.
template <class Metric, class T, bool Powers = true>
void kernel_tile(const T* rows, const T* marks, int64_t stride, int64_t count, int64_t m,
                 int64_t dims, T exponent, const T* shift, T* tile) {
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t all = vectors<T>(count);
  int64_t u = 0;
  for (; u + kColumns <= all; u += kColumns) {
    kernel_columns<Metric, Powers, kColumns>(rows + u * lanes, marks, stride, m, dims, exponent,
                                             shift, tile + u * lanes);
  }
  for (; u < all; ++u) {
    kernel_columns<Metric, Powers, 1>(rows + u * lanes, marks, stride, m, dims, exponent, shift,
                                      tile + u * lanes);
  }
  if (count == all * lanes) return;
  for (int64_t a = 0; a < m; ++a) {
    std::fill(tile + a * kTile + count, tile + a * kTile + all * lanes, T(0));
  }
}

// tile[a][t] = 2^(tile[a][t] - the largest exponent of the token): a kernel that is scaled so that
// each token's largest value is 1. What is left of the last vector is 0.
template <class T>
void powers_of_largest(int64_t count, int64_t m, T* tile) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t all = vectors<T>(count);
  for (int64_t u = 0; u < all; ++u) {
    V largest = load<V>(tile + u * lanes);
    for (int64_t a = 1; a < m; ++a) {
      const V value = load<V>(tile + a * kTile + u * lanes);
      largest = value > largest ? value : largest;
    }
    for (int64_t a = 0; a < m; ++a) {
      T* place = tile + a * kTile + u * lanes;
      store(place, exp2_nonpositive(load<V>(place) - largest));
    }
  }
  for (int64_t a = 0; a < m && count < all * lanes; ++a) {
    std::fill(tile + a * kTile + count, tile + a * kTile + all * lanes, T(0));
  }
}

// A tile of exponents to powers, as tiles go by whose sum a token takes: 2^(tile[a][t] -
// largest[t]) with the largest exponent so far. `factors` is by what this scales the sums over
// earlier tiles; `sums` has that of the powers. The largest begins as minus infinity and the sums
// as 0.
template <class T>
void powers_so_far(int64_t count, int64_t m, T* tile, T* largest, T* sums, T* factors) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  for (int64_t u = 0; u < vectors<T>(count); ++u) {
    const V before = load<V>(largest + u * lanes);
    V most = before, sum = {};
    for (int64_t a = 0; a < m; ++a) {
      const V value = load<V>(tile + a * kTile + u * lanes);
      most = value > most ? value : most;
    }
    for (int64_t a = 0; a < m; ++a) {
      T* place = tile + a * kTile + u * lanes;
      const V power = exp2_nonpositive(load<V>(place) - most);
      store(place, power);
      sum += power;
    }
    const V factor = exp2_nonpositive(before - most);
    store(largest + u * lanes, most);
    store(factors + u * lanes, factor);
    store(sums + u * lanes, load<V>(sums + u * lanes) * factor + sum);
  }
}

// tile[a][t] = 2^(tile[a][t] - log_sums[t]), with the logarithms to base 2 of the sums of all
// powers of a token.
template <class T>
void powers_of_weights(const T* log_sums, int64_t count, int64_t m, T* tile) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  for (int64_t a = 0; a < m; ++a) {
    for (int64_t u = 0; u < vectors<T>(count); ++u) {
      T* place = tile + a * kTile + u * lanes;
      store(place, exp2_nonpositive(load<V>(place) - load<V>(log_sums + u * lanes)));
    }
  }
}

// dtile[a][t] = derivative tile[a][t] (dtile[a][t] - dots[t]), what the gradient weighs in the
// kernel if the rows of the weights in `tile` add up to one.
template <class T>
void weigh(const T* tile, const T* dots, T derivative, int64_t count, int64_t m, T* dtile) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  for (int64_t a = 0; a < m; ++a) {
    for (int64_t u = 0; u < vectors<T>(count); ++u) {
      const int64_t at = a * kTile + u * lanes;
      const V grad = load<V>(dtile + at) - load<V>(dots + u * lanes);
      store(dtile + at, derivative * load<V>(tile + at) * grad);
    }
  }
}

// The gradient through the kernel of a tile: with weights[a][t], which are the derivative times
// the kernel times its gradient,
//   row_grads[c][t] += sum_a weights[a][t] slope(x_t - L_a)_c, and its opposite to mark_grads.
// marks: [channel][landmark]; mark_grads: [landmark][channel], a vector of sums each.
template <class Metric, int A, int C, class T>
MMLAPLACE_INLINE void gradient_block(const T* rows, const T* marks, int64_t stride, int64_t dims,
                                     int64_t count, const T* weights, T* row_grads, T* mark_grads) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  V mark[A][C], sums[A][C];
#pragma GCC unroll 4
  for (int a = 0; a < A; ++a) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
      mark[a][c] = broadcast<V>(marks[c * stride + a]);
      sums[a][c] = load<V>(mark_grads + (a * dims + c) * lanes);
    }
  }
  for (int64_t u = 0; u < count; ++u) {
    V x[C], grad[C];
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
      x[c] = load<V>(rows + c * kTile + u * lanes) + 0;  // turns -0 into 0, for sign()
      grad[c] = load<V>(row_grads + c * kTile + u * lanes);
    }
#pragma GCC unroll 4
    for (int a = 0; a < A; ++a) {
      const V weight = load<V>(weights + a * kTile + u * lanes);
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) {
        const V change = slope(Metric{}, weight, x[c] - mark[a][c]);
        grad[c] += change;
        sums[a][c] -= change;
      }
    }
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) store(row_grads + c * kTile + u * lanes, grad[c]);
  }
#pragma GCC unroll 4
  for (int a = 0; a < A; ++a) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) store(mark_grads + (a * dims + c) * lanes, sums[a][c]);
  }
}

template <class Metric, int C, class T>
MMLAPLACE_INLINE void gradient_channels(const T* rows, const T* marks, int64_t stride, int64_t m,
                                        int64_t dims, int64_t count, const T* weights, T* row_grads,
                                        T* mark_grads) {
  constexpr int64_t lanes = Vector<T>::lanes;
  int64_t a = 0;
  for (; a + kGradientMarks <= m; a += kGradientMarks) {
    gradient_block<Metric, kGradientMarks, C>(rows, marks + a, stride, dims, count,
                                              weights + a * kTile, row_grads,
                                              mark_grads + a * dims * lanes);
  }
  for (; a < m; ++a) {
    gradient_block<Metric, 1, C>(rows, marks + a, stride, dims, count, weights + a * kTile,
                                 row_grads, mark_grads + a * dims * lanes);
  }
}

template <class Metric, class T>
void kernel_gradient(const T* rows, const T* marks, int64_t stride, int64_t count, int64_t m,
                     int64_t dims, const T* weights, T* row_grads, T* mark_grads) {
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t all = vectors<T>(count);
  for (int64_t c = 0; c < dims; ++c) {
    std::fill(row_grads + c * kTile, row_grads + c * kTile + all * lanes, T(0));
  }
  int64_t c = 0;
  for (; c + 2 <= dims; c += 2) {
    gradient_channels<Metric, 2>(rows + c * kTile, marks + c * stride, stride, m, dims, all,
                                 weights, row_grads + c * kTile, mark_grads + c * lanes);
  }
  if (c < dims) {
    gradient_channels<Metric, 1>(rows + c * kTile, marks + c * stride, stride, m, dims, all,
                                 weights, row_grads + c * kTile, mark_grads + c * lanes);
  }
}

// Adds the lanes of each vector to a number.
template <class T>
void add_lanes(const T* sums, int64_t count, T* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] += sum_of_lanes(load<Vec<T>>(sums + i * Vector<T>::lanes));
  }
}

// ---- Moments and quadratic forms --------------------------------------------------------------

// Adds the tokens of each row to its vector of sums.
template <class T>
void add_rows(const T* rows, int64_t count, int64_t num_rows, T* sums) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  for (int64_t a = 0; a < num_rows; ++a) {
    V sum = load<V>(sums + a * lanes);
    for (int64_t u = 0; u < vectors<T>(count); ++u) sum += load<V>(rows + a * kTile + u * lanes);
    store(sums + a * lanes, sum);
  }
}

// Half of `second` += tile diag(weights) tile^T, see mirror(); without weights these are 1.
// copy: kTile * stride. Rows of whole vectors of landmarks have the blocks from the diagonal on.
// The landmarks that are left, such as the last of 49, have whole rows.
template <class T>
void add_second_moment(const T* tile, const T* weights, int64_t count, int64_t m, int64_t stride,
                       T* copy, T* second) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t tokens = vectors<T>(count) * lanes, panels = stride / lanes, whole = m / lanes;
  for (int64_t first = 0; first < stride; first += lanes) {
    for (int64_t t = 0; t < tokens; t += lanes) {
      transpose_square(tile + first * kTile + t, kTile, copy + t * stride + first, stride);
    }
  }
  for (int64_t t = 0; t < tokens && weights; ++t) {
    for (int64_t i = 0; i < stride; i += lanes) {
      store(copy + t * stride + i, weights[t] * load<V>(copy + t * stride + i));
    }
  }
  for (int64_t p = 0; p < whole; ++p) {
    const int64_t first = p * lanes;
    product<true, true>(tile + first * kTile, 0, copy + first, stride, lanes, whole - p, tokens,
                        second + first * stride + first, stride);
  }
  product<true, true>(tile + whole * lanes * kTile, 0, copy, stride, m - whole * lanes, panels,
                      tokens, second + whole * lanes * stride, stride);
}

// The other half of a symmetric matrix that add_second_moment summed.
template <class T>
void mirror(T* second, int64_t m, int64_t stride) {
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t whole = m / lanes * lanes;
  for (int64_t i = 0; i < whole; ++i) {
    for (int64_t j = whole; j < m; ++j) second[i * stride + j] = second[j * stride + i];
    for (int64_t j = 0; j < i / lanes * lanes; ++j) {
      second[i * stride + j] = second[j * stride + i];
    }
  }
}

// The matrix of x^T M x as a sum over j >= i alone, stored transposed: form[j][i].
template <class T>
void pack_form(const double* matrix, int64_t m, int64_t stride, T* form) {
  std::fill(form, form + m * stride, T(0));
  for (int64_t i = 0; i < m; ++i) {
    form[i * stride + i] = static_cast<T>(matrix[i * stride + i]);
    for (int64_t j = i + 1; j < m; ++j) {
      form[j * stride + i] = static_cast<T>(matrix[i * stride + j] + matrix[j * stride + i]);
    }
  }
}

template <int A, int U, class T>
MMLAPLACE_INLINE void form_block(const T* tile, const T* form, int64_t stride, int64_t first,
                                 int64_t m, Vec<T>* values) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  V sums[A][U] = {};
  for (int64_t b = first; b < m; ++b) {
    V value[U];
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) value[u] = load<V>(tile + b * kTile + u * lanes);
#pragma GCC unroll 8
    for (int a = 0; a < A; ++a) {
      const V factor = broadcast<V>(form[b * stride + first + a]);
#pragma GCC unroll 4
      for (int u = 0; u < U; ++u) sums[a][u] += factor * value[u];
    }
  }
#pragma GCC unroll 8
  for (int a = 0; a < A; ++a) {
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      values[u] += sums[a][u] * load<V>(tile + (first + a) * kTile + u * lanes);
    }
  }
}

template <int U, class T>
MMLAPLACE_INLINE void form_columns(const T* tile, const T* form, int64_t stride, int64_t m,
                                   T* values) {
  Vec<T> sums[U] = {};
  int64_t a = 0;
  for (; a + kMarks <= m; a += kMarks) form_block<kMarks, U>(tile, form, stride, a, m, sums);
  for (; a < m; ++a) form_block<1, U>(tile, form, stride, a, m, sums);
  for (int u = 0; u < U; ++u) store(values + u * Vector<T>::lanes, sums[u]);
}

// values[t] = b_t^T M b_t of every column b_t of the tile.
template <class T>
void quadratic_form(const T* tile, const T* form, int64_t stride, int64_t count, int64_t m,
                    T* values) {
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t all = vectors<T>(count);
  int64_t u = 0;
  for (; u + kColumns <= all; u += kColumns) {
    form_columns<kColumns>(tile + u * lanes, form, stride, m, values + u * lanes);
  }
  for (; u < all; ++u) form_columns<1>(tile + u * lanes, form, stride, m, values + u * lanes);
}

// sums[t] = sum_r a[r][t] b[r][t].
template <class T>
void column_dots(const T* a, const T* b, int64_t count, int64_t rows, T* sums) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  for (int64_t u = 0; u < vectors<T>(count); ++u) {
    V sum = {};
    for (int64_t r = 0; r < rows; ++r) {
      sum += load<V>(a + r * kTile + u * lanes) * load<V>(b + r * kTile + u * lanes);
    }
    store(sums + u * lanes, sum);
  }
}

// sums[t] = sum_a weights[a] tile[a][t].
template <class T>
void weighted_sum_of_rows(const T* tile, const T* weights, int64_t count, int64_t m, T* sums) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  for (int64_t u = 0; u < vectors<T>(count); ++u) {
    V sum = {};
    for (int64_t a = 0; a < m; ++a) sum += weights[a] * load<V>(tile + a * kTile + u * lanes);
    store(sums + u * lanes, sum);
  }
}

// Adds the tokens of each row, times their weights, to its vector of sums.
template <class T>
void add_weighted_rows(const T* rows, const T* weights, int64_t count, int64_t num_rows, T* sums) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  for (int64_t a = 0; a < num_rows; ++a) {
    V sum = load<V>(sums + a * lanes);
    for (int64_t u = 0; u < vectors<T>(count); ++u) {
      sum += load<V>(rows + a * kTile + u * lanes) * load<V>(weights + u * lanes);
    }
    store(sums + a * lanes, sum);
  }
}

// Multiplies every row by the factors of the tokens.
template <class T>
void scale_tokens(const T* factors, int64_t count, int64_t num_rows, T* rows) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  for (int64_t a = 0; a < num_rows; ++a) {
    for (int64_t u = 0; u < vectors<T>(count); ++u) {
      T* place = rows + a * kTile + u * lanes;
      store(place, load<V>(place) * load<V>(factors + u * lanes));
    }
  }
}
