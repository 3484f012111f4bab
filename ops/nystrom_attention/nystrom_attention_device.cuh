// GPU kernels of nystrom_attention: its passes over tokens, see docs/maths.md.
//
// This is device code alone, without ATen, so that tests can also run it on a CPU
// (tests/ops/native). A block has a part of the tokens of a head, and goes through it in tiles. Its
// sums over the part have a place of their own in global memory. The blocks that finish last add
// them, in the order of the parts. So results are the same from run to run.
//
// The template parameters are <Metric, Tokens, S, T, Products>: a metric of metrics.h, the tokens
// of a tile, the type S of tokens in global memory, the type T of all else, and who multiplies
// tiles in a forward, FmaUnits or TensorCores. Tiles of kTokens are in shared memory. Tiles of
// kFewTokens, for landmarks or channels that are too many for it and for doubles, are there too if
// there is room, and otherwise in global memory.
//
// Names such as `dmixed` are gradients. m and d are padded in all matrices, see token_tiles.cuh.
#pragma once

#include "../common/cuda/tensor_cores.cuh"
#include "../common/cuda/token_tiles.cuh"

// What is made of a number after this is computed again, and takes no register before.
#ifdef __CUDA_ARCH__
#define MMLAPLACE_ANEW(number) asm volatile("" : "+r"(number))
#else
#define MMLAPLACE_ANEW(number)
#endif

namespace mmlaplace {
namespace nystrom {
namespace device {

using namespace token_tiles;

constexpr int kTokens = 64, kFewTokens = 16;

// The blocks that a multiprocessor must have room for, by which the compiler limits registers.
// Doubles need twice as many and are not what a GPU is for: no limit.
template <class T>
constexpr int blocks_per_processor(int blocks) {
  return sizeof(T) > 4 ? 1 : blocks;
}

// What all passes over the queries or keys have in common.
template <class S, class T>
struct Pass {
  Source<S> tokens;  // queries or keys
  Source<S> values;  // values, or gradients of the outputs, if the pass needs them
  Rotary<T> rotary;
  const T* marks;  // landmarks (batch_heads, d, m)
  T* memory;       // for the tiles; null if they are in shared memory
  T exponent, derivative;
  int64_t heads, count;   // tokens of a head
  int64_t parts, length;  // of the tokens of a head
  int m, d;               // not padded
  // How many blocks of a head have finished, and of each group of parts: (batch_heads, 1 + groups),
  // which start as zeros. Null: nobody adds the sums of the parts.
  int* tickets;
  int64_t group;  // parts of a group

  MMLAPLACE_HOST_DEVICE int64_t tickets_of_head() const { return 1 + ceil_div(parts, group); }

  MMLAPLACE_HOST_DEVICE int marks_n() const { return static_cast<int>(padded_marks(m)); }
  MMLAPLACE_HOST_DEVICE int channels() const { return static_cast<int>(padded_channels(d)); }
};

// The rows that a block needs of memory for its tiles.
struct Rows {
  MMLAPLACE_HOST_DEVICE static int64_t kernel(int64_t m, int64_t d) {
    return padded_channels(d) + padded_marks(m);
  }
  MMLAPLACE_HOST_DEVICE static int64_t moments(int64_t m, int64_t d) {
    return kernel(m, d) + padded_marks(m) / kMarks;
  }
  MMLAPLACE_HOST_DEVICE static int64_t mix(int64_t m, int64_t d) { return moments(m, d) + 1; }
  MMLAPLACE_HOST_DEVICE static int64_t query_gradients(int64_t m, int64_t d) {
    return 2 * kernel(m, d);
  }
  MMLAPLACE_HOST_DEVICE static int64_t key_gradients(int64_t m, int64_t d) {
    return 2 * kernel(m, d) + padded_channels(d) + padded_marks(m) / kMarks + 3;
  }
};

// A block's work on one head. It takes rows of memory one after the other.
template <int Tokens, class S, class T>
struct Block {
  const Pass<S, T>& pass;
  int head, part;  // a grid has at most 2^31 - 1 blocks
  T* next;

  __device__ Block(const Pass<S, T>& pass, int64_t rows, int64_t parts) : pass(pass) {
    head = blockIdx.x / static_cast<unsigned int>(parts);
    part = blockIdx.x % static_cast<unsigned int>(parts);
    MMLAPLACE_SHARED_MEMORY(memory);
    next = reinterpret_cast<T*>(memory);
    if (Tokens == kFewTokens && pass.memory) {
      next = pass.memory + blockIdx.x * rows * kPitch<Tokens>;
    }
  }

  __device__ T* take(int64_t rows) {
    T* array = next;
    next += rows * kPitch<Tokens>;
    return array;
  }

  // This head's matrix of some with `size` values each; null if there are none.
  __device__ const T* of_head(const T* matrices, int64_t size) const {
    return matrices ? matrices + head * size : nullptr;
  }
  __device__ const T* marks() const {
    return of_head(pass.marks, static_cast<int64_t>(pass.channels()) * pass.marks_n());
  }
  __device__ Slice<const S> slice(const Source<S>& source) const {
    return Slice<const S>(source.data, source.strides, pass.heads, head);
  }

  __device__ void load(const Source<S>& source, const Range& range, T* tile) const {
    load_tokens<Tokens>(slice(source), source.quads, range, pass.d, tile);
  }
  // The kernel of a range of tokens. Waits for `tokens`, and not for `tile`.
  template <class Metric, class Products>
  __device__ void kernel(const Range& range, const T* shift, T* tokens, T* tile) const {
    load_turned<Tokens>(slice(pass.tokens), pass.tokens.quads, range, pass.d, pass.rotary, tokens);
    Products::template kernel_tile<Metric, Tokens>(tokens, marks(), pass.m, pass.d, range.count,
                                                   pass.exponent, shift, tile);
  }

  // Calls f(range) for the tiles of the block's part.
  template <class F>
  __device__ void for_tiles(const F& f) const {
    for_tiles(0, [&](const Range& range, bool) { f(range); });
  }
  // Calls f(range, true) for as many samples of all tokens, then f(range, false) for those tiles.
  template <class F>
  __device__ void for_tiles(int samples, const F& f) const {
#pragma unroll 1
    for (int i = -samples;; ++i) {
      int own = part;
      MMLAPLACE_ANEW(own);
      const int64_t begin = own * pass.length, at = begin + i * static_cast<int64_t>(Tokens);
      if (at >= pass.count || at >= begin + pass.length) return;
      const bool sample = samples > 0 && i < 0;
      const int64_t first = sample ? 0 : at, left = pass.count - first;
      const Range range{first, sample && left > Tokens ? left / Tokens : 1,
                        static_cast<int>(left < Tokens ? left : Tokens)};
      f(range, sample);
    }
  }

  // The place of this block among sums (rows, columns) of each part.
  __device__ static T* place(T* sums, int rows, int columns) {
    unsigned int index = blockIdx.x;
    MMLAPLACE_ANEW(index);
    return sums + index * (static_cast<int64_t>(rows) * columns);
  }
  // The same, as zeros. Needs a wait.
  __device__ static T* cleared(T* sums, int rows, int columns) {
    T* own = place(sums, rows, columns);
    for (int i = threadIdx.x; i < rows * columns; i += kThreads) own[i] = 0;
    return own;
  }
  // Adds the sums of the parts of this head to those of the first, if this is its last block to
  // finish. Returns them to this block, and null to others. Groups of parts are added first, so
  // that no block reads all parts.
  __device__ T* add_parts(T* sums, int rows, int columns) const {
    if (pass.tickets == nullptr) return nullptr;
    MMLAPLACE_ANEW(rows);
    const int64_t size = static_cast<int64_t>(rows) * columns;
    int* tickets = pass.tickets + head * pass.tickets_of_head();
    T* of_head = sums + head * pass.parts * size;
    const int64_t group = part / pass.group, first = group * pass.group;
    const int64_t rest = pass.parts - first, members = rest < pass.group ? rest : pass.group;
    if (!add_if_last(of_head + first * size, size, size, members, tickets + 1 + group) ||
        !add_if_last(of_head, size, pass.group * size, pass.tickets_of_head() - 1, tickets)) {
      return nullptr;
    }
    return of_head;
  }
  __device__ static bool add_if_last(T* sums, int64_t size, int64_t apart, int64_t count,
                                     int* ticket) {
    __shared__ bool last;
    __threadfence();  // other blocks see the sums before the ticket
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(ticket, 1) == count - 1;
    __syncthreads();
    if (!last) return false;
    __threadfence();
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      T sum = sums[i];
#pragma unroll 4
      for (int64_t other = 1; other < count; ++other) sum += sums[other * apart + i];
      sums[i] = sum;
    }
    __syncthreads();
    return true;
  }

  // Where a token of this head is in a result (B, N, heads, d), and how far apart tokens are.
  __device__ S* token_of(S* result, int64_t token) const {
    const int64_t batch = head / pass.heads;
    return result + ((batch * pass.count + token) * pass.heads + head % pass.heads) * pass.d;
  }
  __device__ int64_t token_stride() const { return pass.heads * pass.d; }
};

// variances[g][t]: the share of the landmarks of group g, kMarks of them, in b_t^T M b_t, for the
// columns b_t of the tile. `products`, if not null, gets the columns M b_t. M is symmetric.
template <int Tokens, class T>
MMLAPLACE_INLINE void quadratic_forms(const T* form, const T* tile, int marks_n, int m,
                                      T* variances, T* products) {
  for_blocks<kMarks, Tokens>(marks_n, [&](int a, int t) {
    T product[kMarks][4] = {};
    add_product<Tokens>(form + a, marks_n, tile + t, m, product);
    Quad<T> sums = {};
#pragma unroll
    for (int r = 0; r < kMarks; ++r) {
      const Quad<T> values = read_quad(tile + (a + r) * kPitch<Tokens> + t);
#pragma unroll
      for (int u = 0; u < 4; ++u) sums.values[u] += product[r][u] * values.values[u];
    }
    write_quad(variances + a / kMarks * kPitch<Tokens> + t, sums);
    if (products) write_block<Tokens>(product, products + a * kPitch<Tokens> + t);
  });
}

// sum_g variances[g][t]
template <int Tokens, class T>
MMLAPLACE_INLINE T sum_of_column(const T* variances, int groups, int t) {
  T sum = 0;
  for (int g = 0; g < groups; ++g) sum += variances[g * kPitch<Tokens> + t];
  return sum;
}

// The products of a forward, by each thread. TensorCores has the others.
struct FmaUnits {
  template <class Metric, int Tokens, class T>
  MMLAPLACE_INLINE void kernel_tile(const T* tokens, const T* marks, int m, int dims, int count,
                                    T exponent, const T* shift, T* tile) {
    token_tiles::kernel_tile<Metric, Tokens>(tokens, marks, m, dims, count, exponent, shift, tile);
  }
  template <int Tokens, class T>
  MMLAPLACE_INLINE void add_outer(const T* a, int rows, const T* b, int columns, const T* weights,
                                  T* sums) {
    token_tiles::add_outer<Tokens>(a, rows, b, columns, weights, sums);
  }
  template <int Tokens, class T>
  MMLAPLACE_INLINE void add_second_moment(const T* tile, int rows, T* sums) {
    token_tiles::add_second_moment<Tokens>(tile, rows, static_cast<const T*>(nullptr), sums);
  }
  template <int Tokens, class T>
  MMLAPLACE_INLINE int quadratic_forms(const T* form, const T* tile, int rows, int m,
                                       T* variances) {
    device::quadratic_forms<Tokens>(form, tile, rows, m, variances, static_cast<T*>(nullptr));
    return rows / kMarks;
  }
  template <int Tokens, class T>
  MMLAPLACE_INLINE void product(const T* small, int rows, const T* tile, int depth, const T* start,
                                T* result) {
    for_blocks<kChannels, Tokens>(rows, [&](int c, int t) {
      T sums[kChannels][4];
#pragma unroll
      for (int r = 0; r < kChannels; ++r) {
#pragma unroll
        for (int u = 0; u < 4; ++u) sums[r][u] = start ? start[c + r] : T(0);
      }
      add_product<Tokens>(small + c, rows, tile + t, depth, sums);
      write_block<Tokens>(sums, result + c * kPitch<Tokens> + t);
    });
  }
};

// Only rounding brings a variance below zero. NaN stays.
template <class T>
MMLAPLACE_INLINE T whitening_factor(T variance, T eps) {
  return T(1) / sqrt((variance < T(0) ? T(0) : variance) + eps);
}

// dtile[r][u] = derivative tile[r][u] grads[r][u], what the gradient weighs in the kernel. Both
// tiles begin at the block of the gradients.
template <int Tokens, class T>
MMLAPLACE_INLINE void weigh(const T (&grads)[kMarks][4], const T* tile, T derivative, T* dtile) {
#pragma unroll
  for (int r = 0; r < kMarks; ++r) {
    Quad<T> values = read_quad(tile + r * kPitch<Tokens>);
#pragma unroll
    for (int u = 0; u < 4; ++u) values.values[u] *= derivative * grads[r][u];
    write_quad(dtile + r * kPitch<Tokens>, values);
  }
}

// Matrices (batch, rows, columns) with any strides.
template <class T>
struct Matrices {
  const T* values;
  int64_t batch, row, column;
};

// Landmarks (batch_heads, m, d) of any strides as the passes read them, (batch_heads, d, m) with
// zeros beyond, and tickets that have not been taken.
template <class T>
__global__ void __launch_bounds__(kThreads)
    prepare_kernel(Matrices<T> landmarks, int64_t size, int m, int d, T* marks,
                   int64_t tickets_size, int* tickets) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index < tickets_size) tickets[index] = 0;
  if (index >= size) return;
  const int64_t wide = padded_marks(m), channels = padded_channels(d);
  const int64_t a = index % wide, c = index / wide % channels;
  const T* of_head = landmarks.values + index / (wide * channels) * landmarks.batch;
  marks[index] = a < m && c < d ? of_head[a * landmarks.row + c * landmarks.column] : T(0);
}

// Calls f(row, column, sum_k a_k,row b_k,column) for the rows and columns of a product of matrices
// of a head. a(k, row) and b(k, column) read them. Blocks of a thread are spread, so that
// neighbouring threads read neighbouring columns. Waits.
template <class T, class A, class B, class F>
MMLAPLACE_INLINE void for_product(int rows, int columns, int terms, const A& a, const B& b,
                                  const F& f) {
  const int high = (rows + 3) / 4, wide = (columns + 3) / 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < high * wide; i += kThreads) {
    int row[4], column[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) {  // beyond the end, the last again
      const int r = i / wide + u * high, c = i % wide + u * wide;
      row[u] = r < rows ? r : rows - 1;
      column[u] = c < columns ? c : columns - 1;
    }
    T sums[4][4] = {};
#pragma unroll 1
    for (int k = 0; k < terms; ++k) {
      T left[4], right[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) left[u] = a(k, row[u]), right[u] = b(k, column[u]);
#pragma unroll
      for (int u = 0; u < 4; ++u) {
#pragma unroll
        for (int v = 0; v < 4; ++v) sums[u][v] += left[u] * right[v];
      }
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        if (i / wide + u * high < rows && i % wide + v * wide < columns) {
          f(row[u], column[v], sums[u][v]);
        }
      }
    }
  }
  __syncthreads();
}

// What the last block of a head makes of its moments: the mean (m), also as `shift` (padded m), the
// covariance (m, m) and the form P^T Cov P (padded m, padded m).
template <class T>
struct Whitener {
  Matrices<T> inverse;
  T *shift, *mean, *covariance, *form;
};

// The first and second moments of c_i - shift: for each part, sums (m) and (m, m). The shift is the
// mean over some queries that are spread over all. Each block makes it. Without it, the covariance
// would be a small difference of large numbers.
template <class Metric, int Tokens, class S, class T, class Products = FmaUnits>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(4))
    moments_kernel(Pass<S, T> pass, T* sums, Whitener<T> whitener) {
  Block<Tokens, S, T> block(pass, Rows::moments(pass.m, pass.d), pass.parts);
  const int m = pass.marks_n();
  T *tokens = block.take(pass.channels()), *tile = block.take(m), *shift = block.take(m / kMarks);
  block.cleared(sums, m + 1, m);
  for (int a = threadIdx.x; a < m; a += kThreads) shift[a] = 0;  // of the sample
  block.for_tiles(1, [&](const Range& range, bool sample) {
    block.template kernel<Metric, Products>(range, shift, tokens, tile);
    __syncthreads();
    if (sample) {
      for (int a = threadIdx.x; a < m; a += kThreads) {
        shift[a] = sum_of_row<Tokens>(tile + a * kPitch<Tokens>) / range.count;
      }
      return;
    }
    T* first = block.place(sums, m + 1, m);
    add_rows<Tokens>(tile, m, first);
    Products::template add_second_moment<Tokens>(tile, m, first + m);
  });
  const int64_t head = block.head;
  T* shift_of = whitener.shift + head * m;
  T* total = block.add_parts(sums, m + 1, m);
  if (total == nullptr) {
    if (pass.tickets || block.part > 0) return;
    for (int a = threadIdx.x; a < m; a += kThreads) shift_of[a] = shift[a];
    return;
  }
  const int count = pass.m;
  const T share = T(1) / pass.count;
  T* covariance = whitener.covariance + head * count * count;
  for (int i = threadIdx.x; i < m; i += kThreads) {
    const T mean = shift[i] + total[i] * share;
    shift_of[i] = mean;
    if (i < count) whitener.mean[head * count + i] = mean;
  }
  for (int i = threadIdx.x; i < count * count; i += kThreads) {
    const int a = i / count, b = i % count;
    covariance[i] = total[m + a * m + b] * share - total[a] * share * (total[b] * share);
  }
  __syncthreads();
  const Matrices<T>& inverse = whitener.inverse;
  const T* inverse_of = inverse.values + head * inverse.batch;
  const auto column = [&](int k, int c) {
    return c < count ? inverse_of[k * inverse.row + c * inverse.column] : T(0);
  };
  // Cov P, in place of the moments; Cov is symmetric. Then the form.
  T *half = total + m, *form = whitener.form + head * m * m;
  for_product<T>(
      pass.m, m, pass.m, [&](int k, int a) { return covariance[k * count + a]; }, column,
      [&](int a, int b, T sum) { half[a * m + b] = sum; });
  for_product<T>(
      m, m, pass.m, column, [&](int k, int b) { return half[k * m + b]; },
      [&](int a, int b, T sum) { form[a * m + b] = sum; });
}

// The scale of a head, values[batch][head] times a factor. Without values it is the factor.
template <class T>
struct Scales {
  const T* values;
  int64_t batch, head;
  T factor;
};

// What the last block of a head makes of the sums G (m, d) and of v_j: G itself as `mixed`, s P G
// (padded m, padded d) and the mean of v_j (padded d). `start` may be null.
template <class T>
struct Mixer {
  Matrices<T> inverse;
  Scales<T> scales;
  T *mixed, *result, *start;
};

// For each part, sums (m, d) of r_j (b_j - shift) v_j^T and (d) of v_j. `form` M (m, m) makes the
// factors r_j = (b_j^T M b_j + eps)^(-1/2), which without it are 1. Without mixer.result, the last
// block of a head adds the sums alone.
template <class Metric, int Tokens, class S, class T, class Products = FmaUnits>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(4))
    mix_kernel(Pass<S, T> pass, const T* shift, const T* form, T eps, T* sums, Mixer<T> mixer) {
  Block<Tokens, S, T> block(pass, Rows::mix(pass.m, pass.d), pass.parts);
  const int m = pass.marks_n(), d = pass.channels();
  T *tokens = block.take(d), *tile = block.take(m);
  T *variances = block.take(m / kMarks), *factors = block.take(1);
  T* mixed = block.cleared(sums, m + 1, d);
  const T* form_of = block.of_head(form, static_cast<int64_t>(m) * m);
  block.for_tiles([&](const Range& range) {
    block.template kernel<Metric, Products>(range, block.of_head(shift, m), tokens, tile);
    __syncthreads();
    block.load(pass.values, range, tokens);
    if (form) {
      const int groups =
          Products::template quadratic_forms<Tokens>(form_of, tile, m, pass.m, variances);
      __syncthreads();
      for (int t = threadIdx.x; t < Tokens; t += kThreads) {
        // Beyond the last token a tiny eps would make 0 times infinity.
        const T variance = sum_of_column<Tokens>(variances, groups, t);
        factors[t] = t < range.count ? whitening_factor(variance, eps) : T(0);
      }
    }
    __syncthreads();
    Products::template add_outer<Tokens>(tile, m, tokens, d, form ? factors : nullptr, mixed);
    add_rows<Tokens>(tokens, d, mixed + m * d);
    __syncthreads();
  });
  T* total = block.add_parts(sums, m + 1, d);
  if (total == nullptr) return;
  const int64_t head = block.head;
  if (mixer.start) {
    for (int c = threadIdx.x; c < d; c += kThreads) {
      mixer.start[head * d + c] = total[m * d + c] * (T(1) / pass.count);
    }
  }
  if (mixer.result == nullptr) return;  // there are no landmarks, or others multiply
  for (int i = threadIdx.x; i < pass.m * pass.d; i += kThreads) {
    mixer.mixed[head * pass.m * pass.d + i] = total[i / pass.d * d + i % pass.d];
  }
  const Scales<T>& scales = mixer.scales;
  T scale = scales.factor;
  if (scales.values) {
    scale *= scales.values[head / pass.heads * scales.batch + head % pass.heads * scales.head];
  }
  const Matrices<T>& inverse = mixer.inverse;
  const T* inverse_of = inverse.values + head * inverse.batch;
  T* result = mixer.result + head * m * d;
  for_product<T>(
      pass.m, d, pass.m,
      [&](int k, int a) { return inverse_of[a * inverse.row + k * inverse.column]; },
      [&](int k, int c) { return total[k * d + c]; },
      [&](int a, int c, T sum) { result[a * d + c] = scale * sum; });
}

// out_i = start + sum_a (c_ia - shift_a) result_a, with `result` (m, d) and `start` (d).
template <class Metric, int Tokens, class S, class T, class Products = FmaUnits>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(4))
    output_kernel(Pass<S, T> pass, const T* shift, const T* result, const T* start, S* out) {
  Block<Tokens, S, T> block(pass, Rows::kernel(pass.m, pass.d), pass.parts);
  const int m = pass.marks_n(), d = pass.channels();
  T *tokens = block.take(d), *tile = block.take(m);
  const T* result_of = block.of_head(result, static_cast<int64_t>(m) * d);
  const T* start_of = block.of_head(start, d);
  block.for_tiles([&](const Range& range) {
    block.template kernel<Metric, Products>(range, block.of_head(shift, m), tokens, tile);
    __syncthreads();
    Products::template product<Tokens>(result_of, d, tile, pass.m, start_of, tokens);
    __syncthreads();
    store_tokens<Tokens>(tokens, block.token_of(out, range.first), block.token_stride(),
                         range.count, pass.d, [](int, int, T value) { return value; });
    __syncthreads();
  });
}

// The matrices of the backward over keys: the gradient of sum_j r_j b_j v_j^T, (m, d) and (d, m);
// M (m, m) and the mean of the gradients of the outputs (d), both null without whitening.
template <class T>
struct KeyMatrices {
  const T *dmixed, *dmixed_transposed, *form, *mean_grad;
  T eps;
};

// With t_j = dG^T b_j: dv_j = r_j t_j + mean of g, dvar_j = -r_j^3 (t_j^T v_j) / 2,
// db_j = r_j dG v_j + 2 dvar_j M b_j, which goes on to k_j and the landmarks. For each part, sums
// (m, d) of the gradient of the landmarks and, with whitening, (m, m) of dvar_j b_j b_j^T.
template <class Metric, int Tokens, class S, class T>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(3))
    key_gradients_kernel(Pass<S, T> pass, KeyMatrices<T> matrices, S* dk, S* dv, T* sums) {
  Block<Tokens, S, T> block(pass, Rows::key_gradients(pass.m, pass.d), pass.parts);
  const int m = pass.marks_n(), d = pass.channels();
  const bool whitened = matrices.form != nullptr;
  T *tokens = block.take(d), *values = block.take(d), *others = block.take(d);
  T *tile = block.take(m), *dtile = block.take(m), *variances = block.take(m / kMarks);
  T *factors = block.take(1), *slopes = block.take(1), *changes = block.take(1);
  const int64_t size = static_cast<int64_t>(m) * d;
  const T* dmixed = block.of_head(matrices.dmixed, size);
  const T* dmixed_transposed = block.of_head(matrices.dmixed_transposed, size);
  const T* form = block.of_head(matrices.form, static_cast<int64_t>(m) * m);
  const T* mean_grad = block.of_head(matrices.mean_grad, d);
  T* dmarks = sums + blockIdx.x * static_cast<int64_t>(m) * (whitened ? d + m : d);
  block.for_tiles([&](const Range& range) {
    block.load(pass.values, range, values);
    block.template kernel<Metric, FmaUnits>(range, nullptr, tokens, tile);
    __syncthreads();
    for_blocks<kChannels, Tokens>(d, [&](int c, int t) {  // t_j
      T product[kChannels][4] = {};
      add_product<Tokens>(dmixed + c, d, tile + t, pass.m, product);
      write_block<Tokens>(product, others + c * kPitch<Tokens> + t);
    });
    if (whitened) quadratic_forms<Tokens>(form, tile, m, pass.m, variances, dtile);
    __syncthreads();
    if (whitened) {
      // Half of the threads have the variances, and half the products with the values.
      for (int i = threadIdx.x; i < 2 * Tokens; i += kThreads) {
        const int t = i % Tokens;
        if (i < Tokens) {
          const T variance = sum_of_column<Tokens>(variances, m / kMarks, t);
          const T factor = t < range.count ? whitening_factor(variance, matrices.eps) : T(0);
          factors[t] = factor;
          // Nothing goes through a variance that rounding has brought below zero.
          slopes[t] = variance < T(0) ? T(0) : factor * factor * factor * T(-0.5);
        } else {
          T dot = 0;
          for (int c = 0; c < pass.d; ++c) {
            dot += others[c * kPitch<Tokens> + t] * values[c * kPitch<Tokens> + t];
          }
          changes[t] = dot;
        }
      }
      __syncthreads();
      for (int t = threadIdx.x; t < Tokens; t += kThreads) changes[t] *= slopes[t];
      __syncthreads();
    }
    store_tokens<Tokens>(others, block.token_of(dv, range.first), block.token_stride(), range.count,
                         pass.d, [&](int c, int t, T value) {
                           return whitened ? factors[t] * value + mean_grad[c] : value;
                         });
    for_blocks<kMarks, Tokens>(m, [&](int a, int t) {  // db_j
      const int at = a * kPitch<Tokens> + t;
      T grads[kMarks][4] = {};
      add_product<Tokens>(dmixed_transposed + a, m, values + t, pass.d, grads);
      if (whitened) {
        const Quad<T> factor = read_quad(factors + t), change = read_quad(changes + t);
#pragma unroll
        for (int r = 0; r < kMarks; ++r) {
          const Quad<T> through = read_quad(dtile + at + r * kPitch<Tokens>);
#pragma unroll
          for (int u = 0; u < 4; ++u) {
            grads[r][u] = factor.values[u] * grads[r][u] + 2 * change.values[u] * through.values[u];
          }
        }
      }
      weigh<Tokens>(grads, tile + at, pass.derivative, dtile + at);
    });
    if (whitened) add_second_moment<Tokens>(tile, m, changes, dmarks + size);
    __syncthreads();
    token_gradients<Metric, Tokens>(dtile, tokens, block.marks(), m, d, values);
    add_mark_gradients<Metric, Tokens>(dtile, tokens, block.marks(), m, d, dmarks);
    __syncthreads();
    store_turned<Tokens>(values, block.token_of(dk, range.first), block.token_stride(), range,
                         pass.d, pass.rotary);
  });
}

// The matrices of the backward over queries: s P sum_j r_j b_j v_j^T (d, m); and, null without
// whitening, the gradient of the mean over N (m), that of the covariance times 2 / N (m, m), and
// the mean (m).
template <class T>
struct QueryMatrices {
  const T *result_transposed, *dmean, *dcovariance, *mean;
};

// dc_i = s H g_i + dmean / N + 2 dCov (c_i - mean) / N, which goes on to q_i and the landmarks. For
// each part, sums (m, d) of the gradient of the landmarks.
template <class Metric, int Tokens, class S, class T>
__global__ void __launch_bounds__(kThreads, blocks_per_processor<T>(3))
    query_gradients_kernel(Pass<S, T> pass, QueryMatrices<T> matrices, S* dq, T* sums) {
  Block<Tokens, S, T> block(pass, Rows::query_gradients(pass.m, pass.d), pass.parts);
  const int m = pass.marks_n(), d = pass.channels();
  T *tokens = block.take(d), *grads = block.take(d);
  T *tile = block.take(m), *dtile = block.take(m);
  const int64_t size = static_cast<int64_t>(m) * d;
  const T* result_transposed = block.of_head(matrices.result_transposed, size);
  const T* dmean = block.of_head(matrices.dmean, m);
  const T* dcovariance = block.of_head(matrices.dcovariance, static_cast<int64_t>(m) * m);
  const T* mean = block.of_head(matrices.mean, m);
  T* dmarks = sums + blockIdx.x * size;
  block.for_tiles([&](const Range& range) {
    block.load(pass.values, range, grads);
    block.template kernel<Metric, FmaUnits>(range, nullptr, tokens, tile);
    __syncthreads();
    for_blocks<kMarks, Tokens>(m, [&](int a, int t) {  // dc_i
      T changes[kMarks][4] = {};
      add_product<Tokens>(result_transposed + a, m, grads + t, pass.d, changes);
      if (dcovariance) {
        add_product<Tokens>(dcovariance + a, m, tile + t, pass.m, changes, mean);
#pragma unroll
        for (int r = 0; r < kMarks; ++r) {
#pragma unroll
          for (int u = 0; u < 4; ++u) changes[r][u] += dmean[a + r];
        }
      }
      const int at = a * kPitch<Tokens> + t;
      weigh<Tokens>(changes, tile + at, pass.derivative, dtile + at);
    });
    __syncthreads();
    token_gradients<Metric, Tokens>(dtile, tokens, block.marks(), m, d, grads);
    add_mark_gradients<Metric, Tokens>(dtile, tokens, block.marks(), m, d, dmarks);
    __syncthreads();
    store_turned<Tokens>(grads, block.token_of(dq, range.first), block.token_stride(), range,
                         pass.d, pass.rotary);
  });
}

// out = factor a b, (batch, rows, columns), of which a thread has one value. The matrices are those
// of landmarks and channels, and so small.
template <class T>
__global__ void __launch_bounds__(kThreads)
    product_kernel(Matrices<T> a, Matrices<T> b, T factor, T* out, int64_t size, int64_t rows,
                   int64_t columns, int64_t terms) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= size) return;
  const int64_t batch = index / (rows * columns), row = index / columns % rows;
  const T* left = a.values + batch * a.batch + row * a.row;
  const T* right = b.values + batch * b.batch + index % columns * b.column;
  T sum = 0;
#pragma unroll 4
  for (int64_t i = 0; i < terms; ++i) sum += left[i * a.column] * right[i * b.row];
  out[index] = factor * sum;
}

}  // namespace device
}  // namespace nystrom
}  // namespace mmlaplace
