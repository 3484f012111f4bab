// Included once per instruction set; see cpu_dispatch.h.
//
// Copies tokens in memory to rows[channel][token] of a tile of kTile tokens, turned by their rotary
// positions, and back. T is the type of the rows, S that of the values in memory.
#include "simd.h"

template <class T>
MMLAPLACE_INLINE int64_t vectors(int64_t count) {
  return ceil_div(count, Vector<T>::lanes);
}

template <class V>
MMLAPLACE_INLINE V shuffle(V a, V b, typename Traits<V>::bits lanes) {
#if defined(__clang__)
  V result;
  for (int l = 0; l < Traits<V>::lanes; ++l) {
    result[l] = lanes[l] < Traits<V>::lanes ? a[lanes[l]] : b[lanes[l] - Traits<V>::lanes];
  }
  return result;
#else
  return __builtin_shuffle(a, b, lanes);
#endif
}

// Exchanges the off-diagonal blocks of side Side in every block of side 2 * Side.
template <int Side, class V>
MMLAPLACE_INLINE void exchange_blocks(V* x) {
  constexpr int lanes = Traits<V>::lanes;
  typename Traits<V>::bits low, high;
  for (int l = 0; l < lanes; ++l) {
    low[l] = l & Side ? lanes + l - Side : l;
    high[l] = l & Side ? lanes + l : l + Side;
  }
#pragma GCC unroll 16
  for (int r = 0; r < lanes; ++r) {
    if (r & Side) continue;
    const V a = x[r], b = x[r + Side];
    x[r] = shuffle(a, b, low);
    x[r + Side] = shuffle(a, b, high);
  }
  if constexpr (Side > 1) exchange_blocks<Side / 2>(x);
}

// Transposes a square of as many rows as a vector has lanes.
template <class T>
MMLAPLACE_INLINE void transpose_square(const T* from, int64_t from_stride, T* to,
                                       int64_t to_stride) {
  using V = Vec<T>;
  constexpr int lanes = Vector<T>::lanes;
  V x[lanes];
#pragma GCC unroll 16
  for (int r = 0; r < lanes; ++r) x[r] = load<V>(from + r * from_stride);
  exchange_blocks<lanes / 2>(x);
#pragma GCC unroll 16
  for (int r = 0; r < lanes; ++r) store(to + r * to_stride, x[r]);
}

// Transposes rows x columns, both multiples of the lanes.
template <class T>
MMLAPLACE_INLINE void transpose(const T* from, int64_t from_stride, int64_t rows, int64_t columns,
                                T* to, int64_t to_stride) {
  constexpr int64_t lanes = Vector<T>::lanes;
  for (int64_t r = 0; r < rows; r += lanes) {
    for (int64_t c = 0; c < columns; c += lanes) {
      transpose_square(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
    }
  }
}

// Copies `count` tokens to [token][channel], with zeros up to `padded` channels and whole vectors
// of tokens.
template <class T, class S>
void load_tokens(const Slice<const S>& tokens, int64_t count, int64_t dims, int64_t padded,
                 T* target) {
  for (int64_t t = 0; t < count; ++t) {
    const S* from = tokens.row(t);
    T* to = target + t * padded;
    if (tokens.column_stride == 1) {  // compilers vectorise this case
      for (int64_t c = 0; c < dims; ++c) to[c] = static_cast<T>(from[c]);
    } else {
      for (int64_t c = 0; c < dims; ++c) to[c] = static_cast<T>(from[c * tokens.column_stride]);
    }
    std::fill(to + dims, to + padded, T(0));
  }
  const int64_t whole = vectors<T>(count) * Vector<T>::lanes;
  std::fill(target + count * padded, target + whole * padded, T(0));
}

// Turns pairs of channels by the angles of their tokens, or back.
template <class T>
void turn(const Rotation<T>& rotation, int64_t first, int64_t count, bool back, T* rows) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  for (int64_t p = 0; p < rotation.pairs; ++p) {
    T* a = rows + (rotation.adjacent ? 2 * p : p) * kTile;
    T* b = a + (rotation.adjacent ? 1 : rotation.pairs) * kTile;
    const T *cos = rotation.table + p * rotation.tokens + first,
            *sin = cos + rotation.pairs * rotation.tokens;
    const T sign = back ? T(-1) : T(1);
    int64_t t = 0;
    for (; t + lanes <= count; t += lanes) {
      const V x = load<V>(a + t), y = load<V>(b + t);
      const V co = load<V>(cos + t), si = sign * load<V>(sin + t);
      store(a + t, x * co - y * si);
      store(b + t, x * si + y * co);
    }
    for (; t < count; ++t) {
      const T x = a[t], y = b[t], si = sign * sin[t];
      a[t] = x * cos[t] - y * si;
      b[t] = x * si + y * cos[t];
    }
  }
}

// Tokens [first, first + count) of a head to rows[channel][token]. Tokens up to a whole vector are
// zeros. scratch: kTile * padded.
template <class T, class S>
void load_rows(const Slice<const S>& head, int64_t first, int64_t count, int64_t dims,
               const Rotation<T>& rotation, T* scratch, T* rows) {
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t padded = vectors<T>(dims) * lanes;
  const Slice<const S> tokens = head.from(first);
  int64_t done = 0;
  if constexpr (std::is_same<S, T>::value) {
    if (tokens.column_stride == 1 && dims == padded) {
      done = count / lanes * lanes;
      transpose(tokens.data, tokens.row_stride, done, dims, rows, kTile);
    }
  }
  if (done < count) {
    load_tokens(tokens.from(done), count - done, dims, padded, scratch);
    transpose(scratch, padded, vectors<T>(count - done) * lanes, padded, rows + done, kTile);
  }
  if (rotation.pairs) turn(rotation, first, count, false, rows);
}

// The opposite: rows[channel][token] to tokens that are `stride` apart. Overwrites rows where they
// turn.
template <class T, class S>
void store_rows(T* rows, int64_t first, int64_t count, int64_t dims, const Rotation<T>& rotation,
                T* scratch, S* target, int64_t stride) {
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t padded = vectors<T>(dims) * lanes;
  if (rotation.pairs) turn(rotation, first, count, true, rows);
  int64_t done = 0;
  if constexpr (std::is_same<S, T>::value) {
    if (dims == padded) {
      done = count / lanes * lanes;
      transpose(rows, kTile, dims, done, target, stride);
    }
  }
  if (done == count) return;
  transpose(rows + done, kTile, padded, vectors<T>(count - done) * lanes, scratch, padded);
  for (int64_t t = done; t < count; ++t) {
    const T* from = scratch + (t - done) * padded;
    S* to = target + t * stride;
    for (int64_t c = 0; c < dims; ++c) to[c] = static_cast<S>(from[c]);
  }
}
