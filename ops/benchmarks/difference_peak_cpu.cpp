#include "../common/tensor.h"

#include <atomic>

namespace mmlaplace {
constexpr int kChains = 8;  // independent sums, to hide the latency of an addition
}

#define MMLAPLACE_KERNELS "../../benchmarks/difference_peak_vector.h"
#include "../common/cpu/cpu_dispatch.h"

namespace mmlaplace {
namespace {

int64_t difference_peak(const Tensor& like, int64_t steps) {
  const int64_t threads = host::num_threads();
  std::atomic<int64_t> taken{0};
  host::parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      volatile float sink;
      MMLAPLACE_FOR_CPU(take_differences(steps, 0.25f * index, &sink));
      taken += steps * kChains * vector_bytes() / static_cast<int64_t>(sizeof(float));
    }
  });
  return taken;
}

}  // namespace
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace_benchmarks, CPU, library) {
  library.impl("difference_peak", MMLAPLACE_KERNEL(mmlaplace::difference_peak));
}
