// Launches the kernels of pairwise_device.cuh.
//
// The template parameters are <Metric, S, T, Tile>: a metric of metrics.h, the type S in which
// values are stored, the type T in which sums are accumulated (fp64 for fp64, else fp32), and the
// shapes of a block.
#pragma once

#include "gpu.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "../pairwise.h"
#include "pairwise_device.cuh"

namespace mmlaplace {
namespace cuda {

// The size of a grid. Only its first dimension allows 2^31 - 1 blocks, so all are counted there.
inline unsigned int grid(const char* op, int64_t blocks) {
  MMLAPLACE_CHECK(blocks <= std::numeric_limits<int32_t>::max(), op, ": the inputs need ", blocks,
                  " CUDA blocks, more than 2^31 - 1; split the batch");
  return static_cast<unsigned int>(blocks);
}

// Whether four adjacent channels of every row can be read in one access.
template <class S>
bool in_quads(const Tensor& tensor) {
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
  return tensor.stride(3) == 1 && tensor.size(3) % 4 == 0 && tensor.stride(0) % 4 == 0 &&
         tensor.stride(1) % 4 == 0 && tensor.stride(2) % 4 == 0 &&
         address % std::min<std::uintptr_t>(16, 4 * sizeof(S)) == 0;
}

// `count` rounded up to whole tiles.
inline int64_t padded(int64_t count, int64_t tile) { return ceil_div(count, tile) * tile; }

template <class Metric, class Tile, class S, class T>
void launch_forward(const PairwiseSizes& sizes, const device::PairwiseArguments<S>& arguments,
                    S* out, T exponent) {
  const int64_t blocks = sizes.batch_heads() * ceil_div(sizes.queries, Tile::kTileN) *
                         ceil_div(sizes.keys, Tile::kTileM);
  device::forward_kernel<Metric, S, T, Tile>
      <<<grid(Metric::name, blocks), Tile::kThreads, 0, current_stream()>>>(arguments, out,
                                                                            exponent);
  MMLAPLACE_CUDA_CHECK(cudaGetLastError());
}

// Landmarks with landmarks take small tiles. So do doubles, whose large ones would not fit shared
// memory. Otherwise the width is the one that leaves less of the last tile empty: 52 for 49 keys.
template <class Metric, class S>
void forward_in_tiles(const PairwiseSizes& sizes, const Tensor& q, const Tensor& k, Tensor& out,
                      double bandwidth) {
  using T = Wide<S>;
  const device::PairwiseArguments<S> arguments{
      q.data_ptr<S>(), k.data_ptr<S>(), strides_of(q), strides_of(k),  sizes.heads,
      sizes.queries,   sizes.keys,      sizes.dims,    in_quads<S>(q), in_quads<S>(k)};
  const T exponent = static_cast<T>(Metric::exponent(bandwidth) / std::log(2.0));
  S* const results = out.data_ptr<S>();
  if constexpr (sizeof(T) == sizeof(float)) {
    if (sizes.queries > 64) {
      if (padded(sizes.keys, 52) < padded(sizes.keys, 64)) {
        launch_forward<Metric, device::ForwardTile52>(sizes, arguments, results, exponent);
      } else {
        launch_forward<Metric, device::ForwardTile64>(sizes, arguments, results, exponent);
      }
      return;
    }
  }
  launch_forward<Metric, device::ForwardTile32>(sizes, arguments, results, exponent);
}

template <class Metric>
Tensor pairwise_forward(const Tensor& q, const Tensor& k, double bandwidth) {
  const PairwiseSizes sizes = check_pairwise(Metric::name, q, k);
  check_bandwidth<Metric>(Metric::name, bandwidth);
  const cuda::Guard guard(q);
  Tensor out = empty({sizes.batch, sizes.heads, sizes.queries, sizes.keys}, q);
  if (out.numel() == 0) return out;
  MMLAPLACE_DISPATCH(q.scalar_type(), "mmlaplace_pairwise",
                     [&] { forward_in_tiles<Metric, scalar_t>(sizes, q, k, out, bandwidth); });
  return out;
}

template <class Metric, class Tile, class S, class T, class Out>
void launch_gradient(const device::GradientArguments<S>& arguments, int64_t batch_heads, Out* sums,
                     T derivative) {
  const int64_t blocks = batch_heads * ceil_div(arguments.num_rows, Tile::kBlockRows) *
                         ceil_div(arguments.dims, Tile::kBlockChannels) *
                         ceil_div(arguments.num_columns, arguments.chunk);
  device::gradient_kernel<Metric, S, T, Out, Tile>
      <<<grid(Metric::backward_name, blocks), Tile::kThreads, 0, current_stream()>>>(
          arguments, sums, derivative);
  MMLAPLACE_CUDA_CHECK(cudaGetLastError());
}

// The tile is the one that leaves fewer of its rows empty.
template <class Metric, class S, class T, class Out>
void gradient_in_tiles(const device::GradientArguments<S>& arguments, int64_t batch_heads,
                       Out* sums, double bandwidth) {
  const T derivative = static_cast<T>(Metric::derivative(bandwidth));
  if (padded(arguments.num_rows, 52) < padded(arguments.num_rows, 64)) {
    launch_gradient<Metric, device::GradientTile52>(arguments, batch_heads, sums, derivative);
  } else {
    launch_gradient<Metric, device::GradientTile64>(arguments, batch_heads, sums, derivative);
  }
}

template <class Metric>
std::tuple<Tensor, Tensor> pairwise_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                             const Tensor& out, double bandwidth) {
  const PairwiseSizes sizes = check_pairwise_backward(Metric::backward_name, grad, q, k, out);
  check_bandwidth<Metric>(Metric::backward_name, bandwidth);
  const cuda::Guard guard(q);
  Tensor query_grad = empty(q.sizes(), q);
  if (out.numel() == 0 || sizes.dims == 0) {
    return {query_grad.zero_(), zeros(k.sizes(), k)};
  }
  // Shorter chunks than on a CPU, as a GPU needs more blocks. Their sums take up to 15 % of the
  // memory of out.
  const int64_t chunk = std::max<int64_t>(256, gradient_chunk(sizes) / 4);
  const int64_t chunks = ceil_div(sizes.queries, chunk);
  const auto exchanged = [](Strides strides) {
    std::swap(strides.row, strides.column);
    return strides;
  };
  Tensor key_grad;
  MMLAPLACE_DISPATCH(q.scalar_type(), "mmlaplace_pairwise", [&] {
    using T = Wide<scalar_t>;
    const scalar_t *queries = q.data_ptr<scalar_t>(), *keys = k.data_ptr<scalar_t>();
    const scalar_t *upper = grad.data_ptr<scalar_t>(), *values = out.data_ptr<scalar_t>();
    gradient_in_tiles<Metric, scalar_t, T>(
        {queries, keys, upper, values, strides_of(q), strides_of(k), strides_of(grad),
         strides_of(out), sizes.heads, sizes.queries, sizes.keys, sizes.dims, sizes.keys,
         in_quads<scalar_t>(k)},
        sizes.batch_heads(), query_grad.data_ptr<scalar_t>(), bandwidth);
    Tensor partial = empty({chunks, sizes.batch_heads(), sizes.keys, sizes.dims}, q, type_of<T>());
    gradient_in_tiles<Metric, scalar_t, T>(
        {keys, queries, upper, values, strides_of(k), strides_of(q), exchanged(strides_of(grad)),
         exchanged(strides_of(out)), sizes.heads, sizes.keys, sizes.queries, sizes.dims, chunk,
         in_quads<scalar_t>(q)},
        sizes.batch_heads(), partial.data_ptr<T>(), bandwidth);
    key_grad = (chunks == 1 ? partial : partial.sum(0)).view(k.sizes()).to(q.scalar_type());
  });
  return {query_grad, key_grad};
}

}  // namespace cuda
}  // namespace mmlaplace
