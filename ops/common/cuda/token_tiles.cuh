// Tiles of tokens in the memory of a block: how they are read, turned, multiplied and written.
//
// This is device code alone, without ATen, so that tests can also run it on a CPU
// (tests/ops/native). A tile is [row][token]. Its rows are channels or landmarks. `Tokens` of a
// head lie next to each other, and a quad of padding lets neighbouring rows start in different
// banks. A block has kThreads threads. No function here waits for the other threads, but for
// load_turned() and store_turned().
//
// Small matrices of a head are in global memory, [depth][row], so that a thread reads adjacent
// rows. Counts of landmarks are padded to kMarks and counts of channels to kChannels, with zeros.
//
// S is the type of tokens in global memory and T that of tiles, matrices and sums.
#pragma once

#include "../metrics.h"
#include "../strided.h"

#ifndef MMLAPLACE_INLINE
#define MMLAPLACE_INLINE static __device__ __forceinline__
#endif
#ifndef MMLAPLACE_SHARED_MEMORY
#define MMLAPLACE_SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]
#endif

namespace mmlaplace {
namespace token_tiles {

constexpr int kThreads = 128;
constexpr int kMarks = 8, kChannels = 4;  // the rows that a thread has of a tile

template <int Tokens>
constexpr int kPitch = Tokens + 4;

MMLAPLACE_HOST_DEVICE inline int64_t padded_marks(int64_t m) {
  return ceil_div(m, kMarks) * kMarks;
}
MMLAPLACE_HOST_DEVICE inline int64_t padded_channels(int64_t d) {
  return ceil_div(d, kChannels) * kChannels;
}

// A modifier of an addition's operand on a GPU. A comparison with 0 would be an instruction.
template <class T>
MMLAPLACE_INLINE T abs(T value) {
  return fabs(value);
}
// A comparison and a bit operation.
template <class T>
MMLAPLACE_INLINE T sign(T value) {
  return copysign(value != T(0) ? T(1) : T(0), value);
}
#include "../metric_functions.h"

// Four values, which one 16-byte access moves, or two if they are doubles.
template <class T>
struct alignas(16) Quad {
  T values[4];
};
template <class T>
MMLAPLACE_INLINE Quad<T> read_quad(const T* from) {
  return *reinterpret_cast<const Quad<T>*>(from);
}
template <class T>
MMLAPLACE_INLINE void write_quad(T* to, const Quad<T>& quad) {
  *reinterpret_cast<Quad<T>*>(to) = quad;
}

// Four channels of a token in global memory. Those of halves have 8 bytes, aligned to no more.
template <class S>
struct alignas(4 * sizeof(S) < 16 ? 4 * sizeof(S) : 16) Packed {
  S values[4];
};

// Tokens (B, heads, N, d) with any strides.
template <class S>
struct Source {
  const S* data;
  Strides strides;
  bool quads;  // whether the channels of a token can be read as Packed
};

// Angles: table[0][pair][token] has their cosines, table[1] the sines. A pair is the channels c and
// c + pairs or, if adjacent, 2 c and 2 c + 1.
template <class T>
struct Rotary {
  const T* table;
  int64_t tokens;
  int pairs;  // 0: nothing turns
  bool adjacent;
};

// The tokens first + t step of a head, for t < count.
struct Range {
  int64_t first;
  int64_t step;
  int count;
};

// Calls f(token, channel) for each square of 4 tokens x 4 channels of a tile. A warp takes 8
// neighbouring squares along the tokens, so that its writes fill all banks of shared memory. Its
// channels are neighbours in global memory, so that its reads are joined.
template <int Tokens, class F>
MMLAPLACE_INLINE void for_squares(int dims, const F& f) {
  constexpr int kNear = Tokens < 32 ? Tokens / 4 : 8;
  const int columns = (dims + 3) / 4;
  for (int i = threadIdx.x; i < columns * (Tokens / 4); i += kThreads) {
    f((i % kNear + i / (kNear * columns) * kNear) * 4, i / kNear % columns * 4);
  }
}

// Tokens to a tile, with zeros beyond the last token and channel.
template <int Tokens, class S, class T>
MMLAPLACE_INLINE void load_tokens(const Slice<const S>& slice, bool quads, const Range& range,
                                  int dims, T* tile) {
  for_squares<Tokens>(dims, [&](int t, int c) {
    const S* from = slice.row(range.first + t * range.step) + c * slice.column_stride;
    const int64_t step = range.step * slice.row_stride;
    Quad<T> square[4];
#pragma unroll
    for (int u = 0; u < 4; ++u, from += step) {
      const bool inside = t + u < range.count;
      if (quads) {
        Packed<S> packed = {};
        if (inside) packed = *reinterpret_cast<const Packed<S>*>(from);
#pragma unroll
        for (int v = 0; v < 4; ++v) square[v].values[u] = static_cast<T>(packed.values[v]);
      } else {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          square[v].values[u] =
              inside && c + v < dims ? static_cast<T>(from[v * slice.column_stride]) : T(0);
        }
      }
    }
#pragma unroll
    for (int v = 0; v < 4; ++v) write_quad(tile + (c + v) * kPitch<Tokens> + t, square[v]);
  });
}

// The opposite, for a result whose tokens are `stride` apart. `f` makes the value of (c, t, value).
template <int Tokens, class S, class T, class F>
MMLAPLACE_INLINE void store_tokens(const T* tile, S* to, int64_t stride, int count, int dims,
                                   const F& f) {
  const bool quads = dims % 4 == 0;
  for_squares<Tokens>(dims, [&](int t, int c) {
    Quad<T> square[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) square[v] = read_quad(tile + (c + v) * kPitch<Tokens> + t);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      if (t + u >= count) break;
      S* token = to + (t + u) * stride + c;
      if (quads) {
        Packed<S> packed;
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          packed.values[v] = static_cast<S>(f(c + v, t + u, square[v].values[u]));
        }
        *reinterpret_cast<Packed<S>*>(token) = packed;
      } else {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          if (c + v < dims) token[v] = static_cast<S>(f(c + v, t + u, square[v].values[u]));
        }
      }
    }
  });
}

// Turns the pairs of channels of a tile by the angles of their tokens, or back.
template <int Tokens, class T>
MMLAPLACE_INLINE void turn(const Rotary<T>& rotary, const Range& range, bool back, T* tile) {
  const int apart = (rotary.adjacent ? 1 : rotary.pairs) * kPitch<Tokens>;
  for (int i = threadIdx.x; i < rotary.pairs * Tokens; i += kThreads) {
    const int pair = i / Tokens, t = i % Tokens;
    if (t >= range.count) continue;
    const T* cosine = rotary.table + pair * rotary.tokens + range.first + t * range.step;
    const T co = *cosine, sine = cosine[rotary.pairs * rotary.tokens];
    const T si = back ? -sine : sine;
    T* a = tile + (rotary.adjacent ? 2 * pair : pair) * kPitch<Tokens> + t;
    const T x = a[0], y = a[apart];
    a[0] = x * co - y * si;
    a[apart] = x * si + y * co;
  }
}

// Both, and waits.
template <int Tokens, class S, class T>
MMLAPLACE_INLINE void load_turned(const Slice<const S>& slice, bool quads, const Range& range,
                                  int dims, const Rotary<T>& rotary, T* tile) {
  load_tokens<Tokens>(slice, quads, range, dims, tile);
  __syncthreads();
  if (rotary.pairs == 0) return;
  turn<Tokens>(rotary, range, false, tile);
  __syncthreads();
}

// Turns the tile back, writes it and waits.
template <int Tokens, class S, class T>
MMLAPLACE_INLINE void store_turned(T* tile, S* to, int64_t stride, const Range& range, int dims,
                                   const Rotary<T>& rotary) {
  if (rotary.pairs > 0) {
    turn<Tokens>(rotary, range, true, tile);
    __syncthreads();
  }
  store_tokens<Tokens>(tile, to, stride, range.count, dims,
                       [](int, int, T value) { return value; });
  __syncthreads();
}

// Calls f(row, t) for the blocks of Rows x 4 of a tile.
template <int Rows, int Tokens, class F>
MMLAPLACE_INLINE void for_blocks(int rows, const F& f) {
  for (int i = threadIdx.x; i < rows / Rows * (Tokens / 4); i += kThreads) {
    f(i / (Tokens / 4) * Rows, i % (Tokens / 4) * 4);
  }
}

// Folds the rows of a tile into sums: sums[r][u] = f(sums[r][u], small[k][r], tile[k][u]) for
// k < depth. `small` and `tile` begin at the block that the sums are of. The rows of the tile are
// taken less shift[k], if there is one.
template <int Tokens, int Rows, class T, class F>
MMLAPLACE_INLINE void fold(const T* small, int64_t pitch, const T* tile, const T* shift, int depth,
                           T (&sums)[Rows][4], const F& f) {
#pragma unroll 2
  for (int k = 0; k < depth; ++k, small += pitch, tile += kPitch<Tokens>) {
    Quad<T> values = read_quad(tile);
    if (shift) {
#pragma unroll
      for (int u = 0; u < 4; ++u) values.values[u] -= shift[k];
    }
#pragma unroll
    for (int first = 0; first < Rows; first += 4) {
      const Quad<T> factors = read_quad(small + first);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          sums[first + r][u] = f(sums[first + r][u], factors.values[r], values.values[u]);
        }
      }
    }
  }
}

// sums[r][u] += sum_k small[k][r] tile[k][u], or (tile[k][u] - shift[k]).
template <int Tokens, int Rows, class T>
MMLAPLACE_INLINE void add_product(const T* small, int64_t pitch, const T* tile, int depth,
                                  T (&sums)[Rows][4], const T* shift = nullptr) {
  fold<Tokens>(small, pitch, tile, shift, depth, sums,
               [](T sum, T factor, T value) { return sum + factor * value; });
}

// Sums to a tile. `to` begins at the block that they are of.
template <int Tokens, int Rows, class T>
MMLAPLACE_INLINE void write_block(const T (&sums)[Rows][4], T* to) {
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    write_quad(to + r * kPitch<Tokens>, Quad<T>{sums[r][0], sums[r][1], sums[r][2], sums[r][3]});
  }
}

// The kernel of the landmarks from a and the tokens from t on, whose distances are `sums`, less
// `shift` of each landmark if there is one. It is 0 beyond the last token and landmark.
template <int Tokens, class T>
MMLAPLACE_INLINE void write_kernel(T (&sums)[kMarks][4], int a, int t, int m, int count, T exponent,
                                   const T* shift, T* tile) {
#pragma unroll
  for (int r = 0; r < kMarks; ++r) {
    const T less = shift ? shift[a + r] : T(0);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const bool inside = a + r < m && t + u < count;
      sums[r][u] = inside ? exp2(sums[r][u] * exponent) - less : T(0);
    }
  }
  write_block<Tokens>(sums, tile + a * kPitch<Tokens> + t);
}

// The kernel of the landmarks (channels, padded m) and a tile of tokens.
template <class Metric, int Tokens, class T>
MMLAPLACE_INLINE void kernel_tile(const T* tokens, const T* marks, int m, int dims, int count,
                                  T exponent, const T* shift, T* tile) {
  const int padded = static_cast<int>(padded_marks(m));
  for_blocks<kMarks, Tokens>(padded, [&](int a, int t) {
    T sums[kMarks][4] = {};
    fold<Tokens>(marks + a, padded, tokens + t, static_cast<const T*>(nullptr), dims, sums,
                 [](T sum, T mark, T value) { return accumulate(Metric{}, sum, value - mark); });
    write_kernel<Tokens>(sums, a, t, m, count, exponent, shift, tile);
  });
}

// sums[u][v] += sum_t a[u][t] weights[t] b[v][t], with rows of a and b that are some rows apart.
// Without weights these are 1.
template <int Tokens, class T>
MMLAPLACE_INLINE void add_outer_block(const T* a, int a_apart, const T* b, int b_apart,
                                      const T* weights, T (&sums)[4][4]) {
#pragma unroll 1
  for (int t = 0; t < Tokens; t += 4) {
    Quad<T> left[4], right[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      left[u] = read_quad(a + u * a_apart * kPitch<Tokens> + t);
      right[u] = read_quad(b + u * b_apart * kPitch<Tokens> + t);
    }
    if (weights) {
      const Quad<T> weight = read_quad(weights + t);
#pragma unroll
      for (int u = 0; u < 4; ++u) {
#pragma unroll
        for (int w = 0; w < 4; ++w) left[u].values[w] *= weight.values[w];
      }
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
#pragma unroll
        for (int w = 0; w < 4; ++w) sums[u][v] += left[u].values[w] * right[v].values[w];
      }
    }
  }
}

// sums (rows, columns) += a diag(weights) b^T over the tokens of two tiles. The rows of a thread
// are spread, so that neighbouring threads read neighbouring rows.
template <int Tokens, class T>
MMLAPLACE_INLINE void add_outer(const T* a, int rows, const T* b, int columns, const T* weights,
                                T* sums) {
  const int high = rows / 4, wide = columns / 4;
  for (int i = threadIdx.x; i < high * wide; i += kThreads) {
    const int r = i / wide, c = i % wide;
    T block[4][4] = {};
    add_outer_block<Tokens>(a + r * kPitch<Tokens>, high, b + c * kPitch<Tokens>, wide, weights,
                            block);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        sums[(r + u * high) * columns + c + v * wide] += block[u][v];
      }
    }
  }
}

// The same of a tile with itself, where the sums are symmetric: blocks above the diagonal are also
// those below it. `rows` is a multiple of 8.
template <int Tokens, class T>
MMLAPLACE_INLINE void add_second_moment(const T* tile, int rows, const T* weights, T* sums) {
  const int high = rows / 4;
  // The triangle of blocks as a rectangle: of rows from the top, and of those from the bottom.
  for (int i = threadIdx.x; i < high / 2 * (high + 1); i += kThreads) {
    const int row = i / (high + 1), column = i % (high + 1);
    const int r = column > row ? row : high - 1 - row;
    const int c = column > row ? column - 1 : high - 1 - column;
    T block[4][4] = {};
    add_outer_block<Tokens>(tile + r * kPitch<Tokens>, high, tile + c * kPitch<Tokens>, high,
                            weights, block);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        sums[(r + u * high) * rows + c + v * high] += block[u][v];
        if (r != c) sums[(c + v * high) * rows + r + u * high] += block[u][v];
      }
    }
  }
}

template <int Tokens, class T>
MMLAPLACE_INLINE T sum_of_row(const T* row) {
  T sum = 0;
#pragma unroll 4
  for (int t = 0; t < Tokens; t += 4) {
    const Quad<T> values = read_quad(row + t);
    sum += (values.values[0] + values.values[1]) + (values.values[2] + values.values[3]);
  }
  return sum;
}

// sums[r] += sum_t tile[r][t].
template <int Tokens, class T>
MMLAPLACE_INLINE void add_rows(const T* tile, int rows, T* sums) {
  for (int r = threadIdx.x; r < rows; r += kThreads) {
    sums[r] += sum_of_row<Tokens>(tile + r * kPitch<Tokens>);
  }
}

// The channels of which a thread has gradients at a time. There are registers for half as many
// doubles.
template <class T>
constexpr int kGradients = sizeof(T) > 4 ? 2 : 4;

// The gradient of a tile of tokens through the kernel. With weights[a][t], which are its derivative
// times its values times their gradient:
//   result[c][t] = sum_a weights[a][t] slope(tokens[c][t] - marks[c][a])
template <class Metric, int Tokens, class T>
MMLAPLACE_INLINE void token_gradients(const T* weights, const T* tokens, const T* marks,
                                      int marks_n, int channels, T* result) {
  constexpr int kColumns = kGradients<T>;
  for_blocks<kColumns, Tokens>(channels, [&](int c, int t) {
    Quad<T> values[kColumns], grads[kColumns] = {};
#pragma unroll
    for (int v = 0; v < kColumns; ++v) values[v] = read_quad(tokens + (c + v) * kPitch<Tokens> + t);
#pragma unroll 1
    for (int a = 0; a < marks_n; a += 4) {
      Quad<T> mark[kColumns];
#pragma unroll
      for (int v = 0; v < kColumns; ++v) mark[v] = read_quad(marks + (c + v) * marks_n + a);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const Quad<T> weight = read_quad(weights + (a + e) * kPitch<Tokens> + t);
#pragma unroll
        for (int v = 0; v < kColumns; ++v) {
#pragma unroll
          for (int u = 0; u < 4; ++u) {
            grads[v].values[u] +=
                slope(Metric{}, weight.values[u], values[v].values[u] - mark[v].values[e]);
          }
        }
      }
    }
#pragma unroll
    for (int v = 0; v < kColumns; ++v) write_quad(result + (c + v) * kPitch<Tokens> + t, grads[v]);
  });
}

// The gradient of the landmarks: sums[a][c] -= sum_t weights[a][t] slope(tokens[c][t] -
// marks[c][a])
template <class Metric, int Tokens, class T>
MMLAPLACE_INLINE void add_mark_gradients(const T* weights, const T* tokens, const T* marks,
                                         int marks_n, int channels, T* sums) {
  constexpr int kColumns = kGradients<T>;
  const int high = marks_n / 4, wide = channels / kColumns;
  for (int i = threadIdx.x; i < high * wide; i += kThreads) {
    const int a = i / wide, c = i % wide;
    T mark[4][kColumns], block[4][kColumns] = {};
#pragma unroll
    for (int u = 0; u < 4; ++u) {
#pragma unroll
      for (int v = 0; v < kColumns; ++v)
        mark[u][v] = marks[(c + v * wide) * marks_n + a + u * high];
    }
#pragma unroll 1
    for (int t = 0; t < Tokens; t += 4) {
      Quad<T> values[kColumns];
#pragma unroll
      for (int v = 0; v < kColumns; ++v) {
        values[v] = read_quad(tokens + (c + v * wide) * kPitch<Tokens> + t);
      }
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const Quad<T> weight = read_quad(weights + (a + u * high) * kPitch<Tokens> + t);
#pragma unroll
        for (int v = 0; v < kColumns; ++v) {
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            block[u][v] += slope(Metric{}, weight.values[w], values[v].values[w] - mark[u][v]);
          }
        }
      }
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
#pragma unroll
      for (int v = 0; v < kColumns; ++v) {
        sums[(a + u * high) * channels + c + v * wide] -= block[u][v];
      }
    }
  }
}

}  // namespace token_tiles
}  // namespace mmlaplace
