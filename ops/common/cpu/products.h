// Included once per instruction set; see cpu_dispatch.h. It comes after token_rows.h.
//
// Products of small matrices with tiles of kTile tokens, rows[channel][token], by registers.

// Sums that stay in registers at once. AVX-512 has 32 registers.
constexpr int kSums = kBytes == 64 ? 24 : 12;

// C[i][0 : U vectors] (+)= sum_k A(i, k) B[k][0 : U vectors] for R rows i. A(i, k) is
// a[i * kTile + k] of a tile, or a[k * step + i] of a matrix that is stored transposed.
template <bool Tile, bool Add, int R, int U, class T>
MMLAPLACE_INLINE void product_block(const T* a, int64_t step, const T* b, int64_t ldb,
                                    int64_t depth, T* c, int64_t ldc) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  // One row would wait for its sum at every step, so it has several.
  constexpr int kParts = R * U >= 8 ? 1 : 4;
  V sums[kParts][R][U] = {};
  if (Add) {
#pragma GCC unroll 24
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int u = 0; u < U; ++u) sums[0][r][u] = load<V>(c + r * ldc + u * lanes);
    }
  }
  int64_t k = 0;
  for (; k + kParts <= depth; k += kParts) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      V row[U];
#pragma GCC unroll 4
      for (int u = 0; u < U; ++u) row[u] = load<V>(b + (k + part) * ldb + u * lanes);
#pragma GCC unroll 24
      for (int r = 0; r < R; ++r) {
        const V value = broadcast<V>(Tile ? a[r * kTile + k + part] : a[(k + part) * step + r]);
#pragma GCC unroll 4
        for (int u = 0; u < U; ++u) sums[part][r][u] += value * row[u];
      }
    }
  }
  for (; k < depth; ++k) {
#pragma GCC unroll 24
    for (int r = 0; r < R; ++r) {
      const V value = broadcast<V>(Tile ? a[r * kTile + k] : a[k * step + r]);
#pragma GCC unroll 4
      for (int u = 0; u < U; ++u) sums[0][r][u] += value * load<V>(b + k * ldb + u * lanes);
    }
  }
#pragma GCC unroll 24
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      V sum = sums[0][r][u];
#pragma GCC unroll 4
      for (int part = 1; part < kParts; ++part) sum += sums[part][r][u];
      store(c + r * ldc + u * lanes, sum);
    }
  }
}

template <bool Tile, bool Add, int U, class T>
MMLAPLACE_INLINE void product_rows(const T* a, int64_t step, const T* b, int64_t ldb, int64_t rows,
                                   int64_t depth, T* c, int64_t ldc) {
  constexpr int kRows = std::min(kSums / U, 12);
  const int64_t row_step = Tile ? kTile : 1;
  for (; rows >= kRows; rows -= kRows, a += kRows * row_step, c += kRows * ldc) {
    product_block<Tile, Add, kRows, U>(a, step, b, ldb, depth, c, ldc);
  }
  for (; rows >= 4 && kRows > 4; rows -= 4, a += 4 * row_step, c += 4 * ldc) {
    product_block<Tile, Add, 4, U>(a, step, b, ldb, depth, c, ldc);
  }
  for (; rows > 0; --rows, a += row_step, c += ldc) {
    product_block<Tile, Add, 1, U>(a, step, b, ldb, depth, c, ldc);
  }
}

// C (rows, count vectors) (+)= A B, see product_block.
template <bool Tile, bool Add, class T>
void product(const T* a, int64_t step, const T* b, int64_t ldb, int64_t rows, int64_t count,
             int64_t depth, T* c, int64_t ldc) {
  constexpr int64_t lanes = Vector<T>::lanes;
  int64_t now;
  for (int64_t u = 0; u < count; u += now) {
    now = ceil_div(count - u, ceil_div(count - u, 4));  // groups of nearly equal size
    const T* panel = b + u * lanes;
    T* to = c + u * lanes;
    switch (now) {
      case 4: product_rows<Tile, Add, 4>(a, step, panel, ldb, rows, depth, to, ldc); break;
      case 3: product_rows<Tile, Add, 3>(a, step, panel, ldb, rows, depth, to, ldc); break;
      case 2: product_rows<Tile, Add, 2>(a, step, panel, ldb, rows, depth, to, ldc); break;
      default: product_rows<Tile, Add, 1>(a, step, panel, ldb, rows, depth, to, ldc);
    }
  }
}
