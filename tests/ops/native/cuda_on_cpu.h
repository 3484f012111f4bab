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
inline Barrier barrier;

#define __global__
#define __device__
#define __shared__ static  // one block at a time
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __syncthreads() barrier.wait()
#define MMLAPLACE_INLINE static inline

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

#define MMLAPLACE_SHARED_MEMORY(name) unsigned char* name = dynamic_shared_memory

// kernel<<<blocks, threads>>>(arguments...)
template <class Kernel, class... Arguments>
void launch(Kernel kernel, unsigned int blocks, unsigned int threads, Arguments... arguments) {
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    barrier.reset(static_cast<int>(threads));
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
