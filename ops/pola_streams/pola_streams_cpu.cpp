#include "../common/tensor.h"

#include <algorithm>

#include "../common/cpu/arrays.h"
#include "../common/cpu/checks.h"
#include "../common/cpu/rotation.h"
#include "../common/pairwise.h"

#define MMLAPLACE_KERNELS "../../pola_streams/pola_streams_vector.h"
#include "../common/cpu/cpu_dispatch.h"

namespace mmlaplace {
namespace {

Tensor forward(const Tensor& q, const Tensor& powers, const Tensor& shifts, const Tensor& all_sums,
               double eps) {
  MMLAPLACE_CHECK(q.dim() == 4, "pola_streams: q must be (B, heads, N, d), got shape ", q.sizes());
  const int64_t batch = q.size(0), heads = q.size(1), tokens = q.size(2), dims = q.size(3);
  check_fp32("pola_streams", "q", q, q.sizes());
  check_fp32("pola_streams", "power", powers, {heads, 1, dims});
  check_fp32("pola_streams", "shift", shifts, {heads, 1, dims});
  check_fp32("pola_streams", "sums", all_sums, {batch, heads, 2 * dims, dims + 2});
  const Tensor power = powers.contiguous(), shift = shifts.contiguous();
  const Tensor sums = all_sums.contiguous();
  const Tensor out = empty({batch, tokens, heads, dims}, q);
  const int64_t tiles = ceil_div(tokens, kTile), lanes = vector_bytes() / sizeof(float);
  const int64_t padded = ceil_div(dims, lanes) * lanes;
  host::parallel_for(batch * heads * tiles, 4, [&](int64_t begin, int64_t end) {
    // Rows of queries, scratch, features and results; store_rows also reads padded channels.
    const int64_t tile = padded * kTile;
    Arrays<float> memory({tile, tile, 2 * tile, tile + 2 * kTile});
    float *const rows = memory.take(tile), *const scratch = memory.take(tile);
    float *const features = memory.take(2 * tile), *const result = memory.take(tile + 2 * kTile);
    for (int64_t index = begin; index < end; ++index) {
      const int64_t head = index / tiles, first = index % tiles * kTile;
      const int64_t count = std::min(kTile, tokens - first);
      const int64_t channels = head % heads * dims;
      MMLAPLACE_FOR_CPU(load_rows(slice<const float>(q, head), first, count, dims,
                                  Rotation<float>{}, scratch, rows));
      MMLAPLACE_FOR_CPU(stream_rows(rows, count, dims, power.data_ptr<float>() + channels,
                                    shift.data_ptr<float>() + channels,
                                    sums.data_ptr<float>() + head * 2 * dims * (dims + 2),
                                    static_cast<float>(eps), features, result));
      float* target = out.data_ptr<float>() + (head / heads * tokens + first) * heads * dims;
      MMLAPLACE_FOR_CPU(store_rows(result, first, count, dims, Rotation<float>{}, scratch,
                                   target + channels, heads * dims));
    }
  });
  return out;
}

}  // namespace
}  // namespace mmlaplace

MMLAPLACE_LIBRARY_IMPL(mmlaplace, CPU, library) {
  library.impl("_pola_streams", MMLAPLACE_KERNEL(mmlaplace::forward));
}
