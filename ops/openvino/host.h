// OpenVINO as the host of the code for CPUs, see common/cpu/host.h.
#pragma once

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cstdint>

#include "../common/cpu/instruction_set.h"

namespace mmlaplace {
namespace host {

// A stream of OpenVINO computes in an arena of TBB, which has the stream's threads.
template <class F>
void parallel_for(int64_t count, int64_t grain, const F& f) {
  const int64_t threads = std::max(1, tbb::this_task_arena::max_concurrency());
  const int64_t length = std::max(grain, (count + threads - 1) / threads);
  if (count <= length) {
    if (count > 0) f(0, count);
    return;
  }
  const int64_t parts = (count + length - 1) / length;
  tbb::parallel_for(
      int64_t{0}, parts,
      [&](int64_t part) { f(part * length, std::min(count, (part + 1) * length)); },
      tbb::static_partitioner());
}

}  // namespace host
}  // namespace mmlaplace
