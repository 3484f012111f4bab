// Products of tiles by tensor cores, and distances in pairs of halves, on GPUs of compute
// capability 8.0 or later.
//
// The operands of mma.sync have 11 bits as TF32 and 8 as bf16. So a value is the sum of two terms,
// and a product high high + (high low + low high), which leaves 2^-22 and 2^-16 of it out. Sums of
// a tensor core are truncated, so the large products are added outside, where sums are rounded.
// Infinite values become NaN, and so do floats from 4e34 on.
//
// The fragments are those of the PTX ISA, "Warp-level matrix instructions". Tests check them on a
// CPU, where tests/ops/native/cuda_on_cpu.h has the instructions.
#pragma once

#include <type_traits>

#include "token_tiles.cuh"

namespace mmlaplace {
namespace token_tiles {

// What mma.sync multiplies: kDepth terms at a time, of which a register has kPacked.
struct Tf32 {
  static constexpr int kDepth = 8, kPacked = 1;
};
struct Bf16 {
  static constexpr int kDepth = 16, kPacked = 2;
};

#ifndef MMLAPLACE_TENSOR_CORES
#define MMLAPLACE_TENSOR_CORES
// Older GPUs get kernels that stop. The host does not launch them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define MMLAPLACE_PTX(...) __trap()
#else
#define MMLAPLACE_PTX(...) asm volatile(__VA_ARGS__)
#endif
#define MMLAPLACE_MMA(name)                                                                     \
  MMLAPLACE_PTX(                                                                                \
      "mma.sync.aligned." name                                                                  \
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(sums[0]),       \
      "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), \
      "r"(b[0]), "r"(b[1]))

// sums (16, 8) += a (16, kDepth) b (kDepth, 8) of a warp
MMLAPLACE_INLINE void mma(Tf32, const unsigned (&a)[4], const unsigned (&b)[2], float (&sums)[4]) {
  MMLAPLACE_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
}
MMLAPLACE_INLINE void mma(Bf16, const unsigned (&a)[4], const unsigned (&b)[2], float (&sums)[4]) {
  MMLAPLACE_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
}
// Rounded to bf16, the first in the low half.
MMLAPLACE_INLINE unsigned pack(float first, float second) {
  unsigned packed = 0;
  MMLAPLACE_PTX("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

// Pairs of fp16, the first in the low half.
MMLAPLACE_INLINE unsigned pack_halves(float first, float second) {
  unsigned packed = 0;
  MMLAPLACE_PTX("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}
// sums + |a - b|, two instructions
MMLAPLACE_INLINE unsigned add_distances(unsigned sums, unsigned a, unsigned b) {
  MMLAPLACE_PTX(
      "{.reg .b32 x; sub.rn.f16x2 x, %1, %2; abs.f16x2 x, x; add.rn.f16x2 %0, %0, x;}" : "+r"(
          sums) : "r"(a),
      "r"(b));
  return sums;
}
MMLAPLACE_INLINE float sum_of_halves(unsigned pair) {
  float first = 0, second = 0;
  MMLAPLACE_PTX(
      "{.reg .b16 x, y; mov.b32 {x, y}, %2; cvt.f32.f16 %0, x; cvt.f32.f16 %1, y;}" : "=f"(first),
      "=f"(second) : "r"(pair));
  return first + second;
}
#undef MMLAPLACE_MMA
#undef MMLAPLACE_PTX
#endif

// The two terms of a register's values. A difference of 8193 x, rounded, and 8192 x has 11 bits.
MMLAPLACE_INLINE void split(Tf32, const float (&values)[1], unsigned& high, unsigned& low) {
  const float near = fmaf(values[0], -8192.0f, values[0] * 8193.0f);
  high = __float_as_uint(near);
  low = __float_as_uint(values[0] - near) & 0xffffe000u;
}
MMLAPLACE_INLINE void split(Bf16, const float (&values)[2], unsigned& high, unsigned& low) {
  high = pack(values[0], values[1]);
  low = pack(values[0] - __uint_as_float(high << 16),
             values[1] - __uint_as_float(high & 0xffff0000u));
}

// Of the channels in a pair of halves, this many are summed in fp16, and then widened.
constexpr int kHalfSums = 8;

// kernel_tile() of the Laplacian, in fp16 up to the sums of kHalfSums differences. It leaves pairs
// of channels in the tile of tokens, and waits for it. Tokens beyond the range of fp16 stay finite,
// as a difference of infinite ones would be NaN. Sums beyond it are infinite, their kernel is 0.
template <int Tokens>
MMLAPLACE_INLINE void laplacian_tile(float* tokens, const float* marks, int m, int dims, int count,
                                     float exponent, const float* shift, float* tile) {
  const int padded = static_cast<int>(padded_marks(m));
  const int pairs = static_cast<int>(padded_channels(dims)) / 2;
  const auto bounded = [](float x) {
    return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
  };
  for (int i = threadIdx.x; i < pairs * Tokens; i += kThreads) {
    float* at = tokens + i / Tokens * 2 * kPitch<Tokens> + i % Tokens;
    *at = __uint_as_float(pack_halves(bounded(at[0]), bounded(at[kPitch<Tokens>])));
  }
  __syncthreads();
  for_blocks<kMarks, Tokens>(padded, [&](int a, int t) {
    float sums[kMarks][4] = {};
#pragma unroll 1
    for (int first = 0; first < pairs; first += kHalfSums) {
      unsigned halves[kMarks][4] = {};
      const int end = first + kHalfSums < pairs ? first + kHalfSums : pairs;
#pragma unroll 1
      for (int pair = first; pair < end; ++pair) {
        const Quad<float> values = read_quad(tokens + 2 * pair * kPitch<Tokens> + t);
        const float* mark = marks + 2 * pair * padded + a;
#pragma unroll
        for (int r = 0; r < kMarks; r += 4) {
          const Quad<float> even = read_quad(mark + r), odd = read_quad(mark + padded + r);
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            const unsigned packed = pack_halves(even.values[v], odd.values[v]);
#pragma unroll
            for (int u = 0; u < 4; ++u) {
              halves[r + v][u] =
                  add_distances(halves[r + v][u], __float_as_uint(values.values[u]), packed);
            }
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kMarks; ++r) {
#pragma unroll
        for (int u = 0; u < 4; ++u) sums[r][u] += sum_of_halves(halves[r][u]);
      }
    }
    write_kernel<Tokens>(sums, a, t, m, count, exponent, shift, tile);
  });
}

// A warp's block of a product. A thread has 4 sums of each of its 2 x 2 fragments.
constexpr int kBlockRows = 32, kBlockColumns = 16;
using BlockSums = float[2][2][4];

// Calls f(first row, first column) for the blocks of this thread's warp.
template <class F>
MMLAPLACE_INLINE void for_warps(int rows, int columns, const F& f) {
  const int wide = (columns + kBlockColumns - 1) / kBlockColumns;
  const int blocks = (rows + kBlockRows - 1) / kBlockRows * wide;
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < blocks; i += kThreads / 32) {
    f(i / wide * kBlockRows, i % wide * kBlockColumns);
  }
}

// Calls f(row, column, sum) for the sums that this thread has of a block.
template <class F>
MMLAPLACE_INLINE void for_sums(BlockSums& sums, const F& f) {
  const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int u = 0; u < 4; ++u)
        f(16 * i + u / 2 * 8 + row, 8 * j + column + u % 2, sums[i][j][u]);
    }
  }
}

// sums[row][column] += sum_k a(row, k) b(column, k) for k < depth, by a warp.
//
// The order of the terms is free. A thread takes those for which a warp reads from 32 banks: terms
// that lie next to each other in a tile, if they are its tokens, or in different rows, kPitch
// apart, if they are its rows.
template <class Operand, bool kTokensAreTerms, class A, class B>
MMLAPLACE_INLINE void multiply(int depth, const A& a, const B& b, BlockSums& sums) {
  const int group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
  constexpr int kPacked = Operand::kPacked;
  BlockSums small = {};
#pragma unroll 1
  for (int first = 0; first < depth; first += Operand::kDepth) {
    unsigned a_high[2][4], a_low[2][4], b_high[2][2], b_low[2][2];
    const auto load = [&](const auto& matrix, int row, int part, unsigned& high, unsigned& low) {
      float values[kPacked];
#pragma unroll
      for (int e = 0; e < kPacked; ++e) {
        const int n = part * kPacked + e;
        const int k = first + (kTokensAreTerms ? member + 4 * n : 2 * member + n % 2 + n / 2 * 8);
        values[e] = k < depth ? matrix(row, k) : 0.0f;
      }
      split(Operand{}, values, high, low);
    };
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        load(a, 16 * i + group, part, a_high[i][2 * part], a_low[i][2 * part]);
        load(a, 16 * i + 8 + group, part, a_high[i][2 * part + 1], a_low[i][2 * part + 1]);
        load(b, 8 * i + group, part, b_high[i][part], b_low[i][part]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        mma(Operand{}, a_low[i], b_high[j], small[i][j]);
        mma(Operand{}, a_high[i], b_low[j], small[i][j]);
        float large[4] = {};
        mma(Operand{}, a_high[i], b_high[j], large);
#pragma unroll
        for (int u = 0; u < 4; ++u) sums[i][j][u] += large[u];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int u = 0; u < 4; ++u) sums[i][j][u] += small[i][j][u];
    }
  }
}

// The functions of the same names of token_tiles.cuh and nystrom_attention_device.cuh, for floats.
// kHalves: with the distances of the Laplacian in halves.
template <class Operand, bool kHalves = false>
struct TensorCores {
  template <class Metric, int Tokens>
  MMLAPLACE_INLINE void kernel_tile(float* tokens, const float* marks, int m, int dims, int count,
                                    float exponent, const float* shift, float* tile) {
    if constexpr (kHalves && std::is_same<Metric, Laplacian>::value) {
      laplacian_tile<Tokens>(tokens, marks, m, dims, count, exponent, shift, tile);
    } else {
      token_tiles::kernel_tile<Metric, Tokens>(tokens, marks, m, dims, count, exponent, shift,
                                               tile);
    }
  }

  template <int Tokens>
  MMLAPLACE_INLINE void add_outer(const float* a, int rows, const float* b, int columns,
                                  const float* weights, float* sums) {
    for_warps(rows, columns, [&](int row, int column) {
      BlockSums block = {};
      outer_block<Tokens>(a + row * kPitch<Tokens>, rows - row, b + column * kPitch<Tokens>,
                          columns - column, weights, block);
      for_sums(block, [&](int r, int c, float sum) {
        if (row + r < rows && column + c < columns) sums[(row + r) * columns + column + c] += sum;
      });
    });
  }

  // Only the part above the diagonal, which is also that below it.
  template <int Tokens>
  MMLAPLACE_INLINE void add_second_moment(const float* tile, int rows, float* sums) {
    for_warps(rows, rows, [&](int row, int column) {
      if (column + kBlockColumns <= row) return;
      BlockSums block = {};
      outer_block<Tokens>(tile + row * kPitch<Tokens>, rows - row, tile + column * kPitch<Tokens>,
                          rows - column, nullptr, block);
      for_sums(block, [&](int r, int c, float sum) {
        r += row, c += column;
        if (c < r || c >= rows) return;
        sums[r * rows + c] += sum;
        if (c > r) sums[c * rows + r] += sum;
      });
    });
  }

  // variances[g][t] of groups of kBlockRows landmarks, of which it returns the number.
  template <int Tokens>
  MMLAPLACE_INLINE int quadratic_forms(const float* form, const float* tile, int rows, int m,
                                       float* variances) {
    for_warps(rows, Tokens, [&](int row, int column) {
      BlockSums block = {};
      small_block<Tokens>(form + row, rows, rows - row, tile + column, m, block);
      float totals[2][2] = {};
      for_sums(block, [&](int r, int c, float sum) {
        if (row + r < rows) {
          totals[c / 8][c % 2] += sum * tile[(row + r) * kPitch<Tokens> + column + c];
        }
      });
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& total = totals[i / 2][i % 2];
#pragma unroll
        for (int apart = 4; apart < 32; apart *= 2) {
          total += __shfl_xor_sync(0xffffffffu, total, apart);
        }
        const int t = column + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
        if (threadIdx.x % 32 < 4) variances[row / kBlockRows * kPitch<Tokens> + t] = total;
      }
    });
    return (rows + kBlockRows - 1) / kBlockRows;
  }

  // result[c][t] = start[c] + sum_k small[k][c] tile[k][t], without a start from 0.
  template <int Tokens>
  MMLAPLACE_INLINE void product(const float* small, int rows, const float* tile, int depth,
                                const float* start, float* result) {
    for_warps(rows, Tokens, [&](int row, int column) {
      BlockSums block = {};
      small_block<Tokens>(small + row, rows, rows - row, tile + column, depth, block);
      for_sums(block, [&](int r, int c, float sum) {
        if (row + r >= rows) return;
        result[(row + r) * kPitch<Tokens> + column + c] = sum + (start ? start[row + r] : 0.0f);
      });
    });
  }

 private:
  template <int Tokens>
  MMLAPLACE_INLINE void outer_block(const float* a, int a_rows, const float* b, int b_rows,
                                    const float* weights, BlockSums& sums) {
    multiply<Operand, true>(
        Tokens,
        [&](int row, int t) {
          // Two guarded loads. If one waits for the other, the compiler makes branches.
          const float weight = weights ? weights[t] : 1.0f;
          const float value = row < a_rows ? a[row * kPitch<Tokens> + t] : 0.0f;
          return value * weight;
        },
        [&](int row, int t) { return row < b_rows ? b[row * kPitch<Tokens> + t] : 0.0f; }, sums);
  }

  template <int Tokens>
  MMLAPLACE_INLINE void small_block(const float* small, int pitch, int rows, const float* tile,
                                    int depth, BlockSums& sums) {
    multiply<Operand, false>(
        depth, [&](int row, int k) { return row < rows ? small[k * pitch + row] : 0.0f; },
        [&](int t, int k) { return tile[k * kPitch<Tokens> + t]; }, sums);
  }
};

}  // namespace token_tiles
}  // namespace mmlaplace
