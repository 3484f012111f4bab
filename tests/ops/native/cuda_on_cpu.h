// As much of CUDA as the device code of ops/ uses, on a CPU: a block is a set of real threads with
// a barrier, blocks run one after the other. What a GPU would run is compiled by the host's
// compiler, so its sanitizers check indices (AddressSanitizer) and missing barriers
// (ThreadSanitizer).
#pragma once

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

struct Dimension {
  unsigned int x = 1;
};

inline thread_local Dimension threadIdx;
inline Dimension blockIdx, blockDim, gridDim;
alignas(16) inline unsigned char dynamic_shared_memory[1 << 18];

class Barrier {
 public:
  void reset(int threads) { waiting_ = 0, threads_ = threads; }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const unsigned long long round = round_;
    if (++waiting_ == threads_) {
      waiting_ = 0;
      ++round_;
      condition_.notify_all();
    } else {
      condition_.wait(lock, [&] { return round != round_; });
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  int waiting_ = 0, threads_ = 0;
  unsigned long long round_ = 0;
};
inline Barrier barrier, warp_barriers[32];

#define __global__
#define __device__
#define __shared__ static  // one block at a time
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __syncthreads() barrier.wait()
#define __threadfence()  // blocks run one after the other
#define MMLAPLACE_INLINE static inline

inline int atomicAdd(int* target, int value) {
  return __atomic_fetch_add(target, value, __ATOMIC_RELAXED);
}

// Copies in the background of a GPU are done at once. They demand alignment as a GPU does.
inline void __pipeline_memcpy_async(void* to, const void* from, std::size_t bytes) {
  const auto aligned = [&](const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
  };
  if (!aligned(to) || !aligned(from)) std::abort();
  std::memcpy(to, from, bytes);
}
inline void __pipeline_commit() {}
inline void __pipeline_wait_prior(std::size_t) {}

// What the threads of a warp hand each other, one instruction after the other. A place is written
// again two instructions later, when all threads have read it.
struct Registers {
  unsigned a[4], b[2];
};
inline Registers registers[2][32][32];
inline const Registers* exchange(const Registers& own) {
  static thread_local unsigned int instructions = 0;
  const unsigned int warp = threadIdx.x / 32;
  Registers* of_warp = registers[++instructions % 2][warp];
  of_warp[threadIdx.x % 32] = own;
  warp_barriers[warp].wait();
  return of_warp;
}

template <class To, class From>
To same_bits(From value) {
  To bits;
  static_assert(sizeof(To) == sizeof(From), "");
  std::memcpy(&bits, &value, sizeof(To));
  return bits;
}
inline unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
inline long long __double_as_longlong(double value) { return same_bits<long long>(value); }
inline double __longlong_as_double(long long bits) { return same_bits<double>(bits); }
inline float __shfl_xor_sync(unsigned, float value, int apart) {
  return __uint_as_float(exchange({{__float_as_uint(value)}, {}})[threadIdx.x % 32 ^ apart].a[0]);
}

// The tensor cores of ops/common/cuda/tensor_cores.cuh. Where an element of a fragment is, the PTX
// ISA says for each instruction, and so do these functions: element i of a lane. Products are
// exact, and their sum is truncated to fp32, as measured by Ootomo and Yokota (arXiv 2203.03341).
#define MMLAPLACE_TENSOR_CORES
namespace mmlaplace {
namespace token_tiles {

struct Tf32;
struct Bf16;
struct Place {
  int row, column;
};
// m16n8k8 with TF32: 4 elements of a (16, 8), 2 of b (8, 8)
inline Place place_in_a(const Tf32*, int lane, int i) {
  return {lane / 4 + (i == 1 || i == 3 ? 8 : 0), lane % 4 + (i >= 2 ? 4 : 0)};
}
inline Place place_in_b(const Tf32*, int lane, int i) { return {lane % 4 + 4 * i, lane / 4}; }
inline float element(const Tf32*, const unsigned* registers, int i) {
  const float value = __uint_as_float(registers[i]);
  if (registers[i] & 0x1fff && !std::isnan(value)) std::abort();  // more bits than TF32 has
  return __uint_as_float(registers[i] & ~0x1fffu);
}
// m16n8k16 with bf16: 8 elements of a (16, 16), 4 of b (16, 8), two in a register
inline Place place_in_a(const Bf16*, int lane, int i) {
  const bool upper = i < 2 || (4 <= i && i < 6);
  return {lane / 4 + (upper ? 0 : 8), lane % 4 * 2 + i % 2 + (i >= 4 ? 8 : 0)};
}
inline Place place_in_b(const Bf16*, int lane, int i) {
  return {lane % 4 * 2 + i % 2 + (i >= 2 ? 8 : 0), lane / 4};
}
inline float element(const Bf16*, const unsigned* registers, int i) {
  return __uint_as_float(i % 2 ? registers[i / 2] & 0xffff0000u : registers[i / 2] << 16);
}
inline Place place_in_sums(int lane, int i) {
  return {lane / 4 + (i >= 2 ? 8 : 0), lane % 4 * 2 + i % 2};
}

template <class Operand>
void mma(Operand, const unsigned (&a)[4], const unsigned (&b)[2], float (&sums)[4]) {
  const Operand* operand = nullptr;
  constexpr int depth = Operand::kDepth;
  const Registers* lanes = exchange({{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
  float left[16][depth], right[depth][8];
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < depth / 2; ++i) {
      const Place at = place_in_a(operand, lane, i);
      left[at.row][at.column] = element(operand, lanes[lane].a, i);
    }
    for (int i = 0; i < depth / 4; ++i) {
      const Place at = place_in_b(operand, lane, i);
      right[at.row][at.column] = element(operand, lanes[lane].b, i);
    }
  }
  for (int i = 0; i < 4; ++i) {
    const Place at = place_in_sums(threadIdx.x % 32, i);
    double sum = sums[i];
    for (int k = 0; k < depth; ++k) sum += double{left[at.row][k]} * right[k][at.column];
    sums[i] = static_cast<float>(sum);
    if (std::fabs(sums[i]) > std::fabs(sum)) sums[i] = std::nextafter(sums[i], 0.0f);
  }
}

inline unsigned rounded_to_bf16(float value) {  // to the nearest, and to even between two
  const unsigned bits = __float_as_uint(value);
  return std::isnan(value) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned pack(float first, float second) {
  return rounded_to_bf16(first) | rounded_to_bf16(second) << 16;
}

// Pairs of fp16, whose sums and differences are exact in fp64 and rounded once.
inline double half_value(unsigned bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size = exponent == 31  ? (fraction ? NAN : INFINITY)
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -size : size;
}
inline unsigned half_bits(double value) {
  const unsigned sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7fff;
  if (value == 0) return sign;
  int exponent;
  std::frexp(value, &exponent);
  const int unit = std::max(exponent, -13) - 11;  // of the last bit
  const double rounded = std::nearbyint(std::ldexp(std::fabs(value), -unit));
  if (!(std::ldexp(rounded, unit) < 65536)) return sign | 0x7c00;
  // A carry out of the fraction goes on to the exponent.
  return sign | ((static_cast<unsigned>(unit + 24) << 10) + static_cast<unsigned>(rounded));
}
inline unsigned pack_halves(double first, double second) {
  return half_bits(first) | half_bits(second) << 16;
}
inline unsigned add_distances(unsigned sums, unsigned a, unsigned b) {
  const auto add = [](unsigned sum, unsigned x, unsigned y) {
    const unsigned apart = half_bits(half_value(x) - half_value(y));
    return half_value(sum) + std::fabs(half_value(apart));
  };
  const unsigned low = 0xffff;
  return pack_halves(add(sums & low, a & low, b & low), add(sums >> 16, a >> 16, b >> 16));
}
inline float sum_of_halves(unsigned pair) {
  return static_cast<float>(half_value(pair & 0xffff) + half_value(pair >> 16));
}

}  // namespace token_tiles
}  // namespace mmlaplace

#define MMLAPLACE_SHARED_MEMORY(name) unsigned char* name = dynamic_shared_memory

inline bool last_block_first = false;  // a GPU promises no order

// kernel<<<blocks, threads>>>(arguments...)
template <class Kernel, class... Arguments>
void launch(Kernel kernel, unsigned int blocks, unsigned int threads, Arguments... arguments) {
  gridDim.x = blocks;
  blockDim.x = threads;
  for (unsigned int block = 0; block < blocks; ++block) {
    blockIdx.x = last_block_first ? blocks - 1 - block : block;
    barrier.reset(static_cast<int>(threads));
    for (unsigned int first = 0; first < threads; first += 32) {
      warp_barriers[first / 32].reset(static_cast<int>(std::min(32u, threads - first)));
    }
    std::vector<std::thread> running;
    for (unsigned int thread = 0; thread < threads; ++thread) {
      running.emplace_back([=] {
        threadIdx.x = thread;
        kernel(arguments...);
      });
    }
    for (std::thread& thread : running) thread.join();
  }
}
