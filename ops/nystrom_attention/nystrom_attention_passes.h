// The host code of nystrom_attention on a GPU: the passes over tokens of nystrom_attention_device.
// Up to kMostJoined landmarks, the last blocks of a pass multiply the small matrices between it and
// the next. For more, products in kernels of their own have more blocks.
//
// `Device` launches the kernels, see common/cuda/launch.h. There is no other CUDA here, so that
// tests can run this on a CPU. Matrices are padded as in token_tiles.cuh, and (batch_heads, ., .).
#pragma once

#include "../common/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>

#include "../common/cuda/token_source.h"
#include "../newton_schulz_inverse/small_matrix_layouts.h"
#include "landmark_inverse_device.cuh"
#include "nystrom_attention.h"

namespace mmlaplace {
namespace nystrom {

using RowsOf = int64_t (*)(int64_t m, int64_t d);
constexpr int64_t kMostJoined = 64;

template <class Device, class Metric, int Tokens, class S>
class Passes {
  using T = Wide<S>;
  using Pass = device::Pass<S, T>;
  // Distances in fp16 and products of two bf16 terms are as accurate as bf16 tokens need. fp16
  // tokens need more where landmarks are close.
  static constexpr bool kBf16 = std::is_same<S, c10::BFloat16>::value;
  using TensorCores = std::conditional_t<
      Tokens == device::kTokens,
      token_tiles::TensorCores<std::conditional_t<kBf16, token_tiles::Bf16, token_tiles::Tf32>,
                               kBf16>,
      device::FmaUnits>;

 public:
  // The shared memory that a block of a pass needs.
  static int64_t bytes_of(const Sizes& sizes, RowsOf rows_of) {
    return rows_of(sizes.marks, sizes.dims) * token_tiles::kPitch<Tokens> *
           static_cast<int64_t>(sizeof(T));
  }

  Passes(const Device& device, const Sizes& sizes, const Inputs& inputs)
      : device_(device),
        sizes_(sizes),
        inputs_(inputs),
        heads_(sizes.batch_heads()),
        m_(token_tiles::padded_marks(sizes.marks)),
        d_(token_tiles::padded_channels(sizes.dims)),
        eps_(static_cast<T>(inputs.whitening)),
        bandwidth_(inputs.bandwidth),
        whitened_(inputs.whitening >= 0),
        joined_(sizes.marks <= kMostJoined),
        adjacent_(inputs.adjacent),
        marks_(empty({heads_, d_, m_}, inputs.landmarks, type_of<T>())),
        table_(wide<T>(inputs.rotary)),
        tickets_(empty({heads_ * most_tickets()}, marks_, ScalarType::Int)) {}

  Results forward(const Tensor& q, const Tensor& k, const Tensor& v) const {
    prepare();
    const Moments moments = whitened_ ? moments_of(q) : Moments{};
    const Tensor inverse = of_heads(inputs_.inverse);
    const Tensor mixed = place(sizes_.marks, sizes_.dims), result = empty({heads_, m_, d_}, marks_);
    const Tensor start = whitened_ ? empty({heads_, d_}, marks_) : Tensor();
    const Tensor out = tokens_like(q),
                 scale = inputs_.scale.defined() ? inputs_.scale.to(type_of<T>()) : Tensor();
    const auto [total, values] =
        mix(k, v, {}, moments.form,
            {matrices(inverse), scales(scale), pointer(mixed), pointer(result), pointer(start)});
    if (!joined_) {
      mixed.copy_(cut(total, sizes_.marks, sizes_.dims));
      result.copy_(product(padded(inputs_.inverse, m_, m_), total) * scale_of_heads());
      if (whitened_) start.copy_(values * (1.0 / sizes_.keys));
    }
    const Parts parts = parts_of(sizes_.queries);
    launch(pick(device::output_kernel<Metric, Tokens, S, T>,
                device::output_kernel<Metric, Tokens, S, T, TensorCores>),
           parts, device::Rows::kernel, pass(q, parts), pointer(moments.shift), pointer(result),
           pointer(start), out.template data_ptr<S>());
    return {by_head(out), whitened_ ? moments.mean : zeros(0),
            whitened_ ? moments.covariance : zeros(0, 0), mixed};
  }
  // For outputs without a value.
  Results empty_forward(const Tensor& q) const {
    const int64_t m = sizes_.marks, moments = whitened_ ? m : 0;
    return {by_head(tokens_like(q)), zeros(moments), zeros(moments, moments),
            zeros(m, sizes_.dims)};
  }

  // The gradients of q, k, v, the landmarks, the inverse and the scale, by the formulas of the CPU
  // (nystrom_attention_backward.h).
  Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& mean_of, const Tensor& covariance_of,
                     const Tensor& mixed_of) const {
    prepare();
    const double queries = static_cast<double>(sizes_.queries);
    const Tensor mixed = padded(mixed_of, m_, d_), inverse = padded(inputs_.inverse, m_, m_);
    Tensor mean, covariance, form, mean_grad, dmean, dcovariance;
    if (whitened_) {
      mean = padded(mean_of.unsqueeze(2), 1, m_);
      covariance = padded(covariance_of, m_, m_);
      form = whitener(inverse, covariance);
    }
    // With H = P G, G = sum_j r_j b_j v_j^T, D = sum_i (c_i - mean) g_i^T:
    //   ds = <D, H>,  dH = s D,  dP = dH G^T,  dG = P^T dH,  dmean = -s H sum_i g_i.
    const auto [products, grads] = mix(q, grad, mean, {}, {});
    const Tensor unscaled = product(inverse, mixed), scale = scale_of_heads();
    const Tensor dscale = (products * unscaled).sum(IntArrayRef{1, 2});
    const Tensor result = unscaled * scale, dresult = products * scale;
    Tensor dinverse = product(dresult, mixed.transpose(1, 2));
    const Tensor dmixed = product(inverse.transpose(1, 2), dresult);
    if (whitened_) {
      mean_grad = grads * (1.0 / sizes_.keys);
      dmean = product(result, grads.unsqueeze(2), -1 / queries);
    }

    const Tensor dk = tokens_like(k), dv = tokens_like(v), dq = tokens_like(q);
    const Parts key_parts = parts_of(sizes_.keys), query_parts = parts_of(sizes_.queries);
    const Tensor dmixed_transposed = dmixed.transpose(1, 2).contiguous();
    const Tensor key_sums = sums(key_parts, m_ * (whitened_ ? d_ + m_ : d_));
    launch(device::key_gradients_kernel<Metric, Tokens, S, T>, key_parts,
           device::Rows::key_gradients, pass(k, key_parts, v),
           device::KeyMatrices<T>{pointer(dmixed), pointer(dmixed_transposed), pointer(form),
                                  pointer(mean_grad), eps_},
           dk.template data_ptr<S>(), dv.template data_ptr<S>(), key_sums.template data_ptr<T>());
    const Tensor by_keys = key_sums.sum(1);
    if (whitened_) {  // with dM = sum_j dvar_j b_j b_j^T: dCov = P dM P^T, dP += 2 Cov P dM
      const Tensor half = product(inverse, piece(by_keys, m_ * d_, m_, m_));
      dinverse = dinverse + product(covariance, half, 2);
      dcovariance = product(half, inverse.transpose(1, 2), 2 / queries);
    }

    const Tensor result_transposed = result.transpose(1, 2).contiguous();
    const Tensor query_sums = sums(query_parts, m_ * d_);
    launch(device::query_gradients_kernel<Metric, Tokens, S, T>, query_parts,
           device::Rows::query_gradients, pass(q, query_parts, grad),
           device::QueryMatrices<T>{pointer(result_transposed), pointer(dmean),
                                    pointer(dcovariance), pointer(mean)},
           dq.template data_ptr<S>(), query_sums.template data_ptr<T>());
    const Tensor dmarks = piece(by_keys, 0, m_, d_) + piece(query_sums.sum(1), 0, m_, d_);
    return {by_head(dq),
            by_head(dk),
            by_head(dv),
            cut(dmarks, sizes_.marks, sizes_.dims),
            cut(dinverse, sizes_.marks, sizes_.marks),
            dscale.view({sizes_.batch, sizes_.heads})};
  }
  Gradients empty_backward(const Tensor& q, const Tensor& k) const {
    const int64_t m = sizes_.marks;
    const Tensor dk = tokens_like(k).zero_();
    return {by_head(tokens_like(q)), by_head(dk), by_head(dk.clone()),
            zeros(m, sizes_.dims),   zeros(m, m), zeros()};
  }

 protected:
  const Device& device_;
  const Sizes sizes_;
  const Inputs& inputs_;
  const int64_t heads_, m_, d_;
  const T eps_;
  const double bandwidth_;
  const bool whitened_, joined_, adjacent_;
  const Tensor marks_, table_, tickets_;

  // How the tokens of a head are divided: into whole tiles, for about 512 blocks in all. So the
  // sums of all parts take some hundred times m (m + d), however many tokens there are. The shapes
  // alone decide it, so that results are the same on every GPU that has room for the same tiles.
  struct Parts {
    int64_t count, length, tokens;
    int64_t group() const { return static_cast<int64_t>(std::ceil(std::sqrt(count))); }
    int64_t tickets() const { return 1 + ceil_div(count, group()); }
  };
  Parts parts_of(int64_t tokens) const {
    const int64_t tiles = ceil_div(tokens, Tokens),
                  wanted = ceil_div(512, std::max<int64_t>(1, heads_));
    const int64_t length = std::max<int64_t>(1, ceil_div(tiles, wanted)) * Tokens;
    return {std::max<int64_t>(1, ceil_div(tokens, length)), length, tokens};
  }
  // Of a head: for its moments, and then for a mix over queries or keys.
  int64_t most_tickets() const {
    const int64_t queries = parts_of(sizes_.queries).tickets();
    return queries + std::max(queries, parts_of(sizes_.keys).tickets());
  }

  // Landmarks as the passes read them, and tickets that have not been taken.
  void prepare() const {
    if (inputs_.ridge >= 0) return invert();
    const Tensor landmarks = of_heads(inputs_.landmarks);
    device_.launch("nystrom_attention", device::prepare_kernel<T>,
                   ceil_div(std::max(marks_.numel(), tickets_.numel()), token_tiles::kThreads),
                   token_tiles::kThreads, 0, matrices(landmarks), marks_.numel(),
                   static_cast<int>(sizes_.marks), static_cast<int>(sizes_.dims), pointer(marks_),
                   tickets_.numel(), tickets_.data_ptr<int>());
  }
  // The same, and the inverse that inputs_ has a place for.
  void invert() const {
    const auto limits = std::numeric_limits<T>();
    const device::LandmarkInverse<T> of{pointer(inputs_.landmarks),
                                        static_cast<int>(sizes_.marks),
                                        static_cast<int>(sizes_.dims),
                                        exponent(),
                                        static_cast<T>(inputs_.ridge),
                                        limits.infinity(),
                                        limits.quiet_NaN(),
                                        pointer(inputs_.inverse),
                                        pointer(marks_),
                                        most_tickets(),
                                        tickets_.data_ptr<int>()};
    cuda::with_small_layout("landmark_attention", sizes_.marks, [&](auto, auto tile) {
      constexpr int Tile = decltype(tile)::value;
      using Matrix = mmlaplace::device::SmallMatrix<mmlaplace::device::kCholeskyGrid, Tile>;
      device_.launch("landmark_attention", device::landmark_inverse_kernel<Metric, Tile, T>, heads_,
                     mmlaplace::device::kCholeskyThreads,
                     2 * Matrix::kSide * static_cast<int64_t>(sizeof(T)), of);
    });
  }
  T exponent() const { return static_cast<T>(Metric::exponent(bandwidth_) / std::log(2.0)); }
  // Of each head: those of inputs_, or gamma / n.
  device::Scales<T> scales(const Tensor& scale) const {
    if (inputs_.ridge < 0) return {pointer(scale), scale.stride(0), scale.stride(1), T(1)};
    if (!scale.defined()) return {nullptr, 0, 0, T(1)};
    return {pointer(scale), 0, scale.stride(0), T(1) / static_cast<T>(sizes_.keys)};
  }

  template <class... Lengths>
  Tensor zeros(Lengths... lengths) const {  // (B, heads, ...)
    return mmlaplace::zeros({sizes_.batch, sizes_.heads, lengths...}, marks_);
  }
  template <class... Lengths>
  Tensor place(Lengths... lengths) const {  // the same without values
    return empty({sizes_.batch, sizes_.heads, lengths...}, marks_);
  }
  // A place for the sums of each part.
  Tensor sums(const Parts& parts, int64_t size) const {
    return mmlaplace::zeros({heads_, parts.count, size}, marks_);
  }
  static T* pointer(const Tensor& tensor) {
    return tensor.defined() ? tensor.data_ptr<T>() : nullptr;
  }

  // (B, heads, a, b) in T as (batch_heads, a, b).
  Tensor of_heads(const Tensor& tensor) const {
    return tensor.to(type_of<T>()).reshape({heads_, tensor.size(2), tensor.size(3)});
  }
  static device::Matrices<T> matrices(const Tensor& tensor) {
    return {pointer(tensor), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
  }
  Tensor scale_of_heads() const { return wide<T>(inputs_.scale).view({heads_, 1, 1}); }

  // (B, heads, a, b) in T with zeros beyond, as (batch_heads, rows, columns).
  Tensor padded(const Tensor& matrices, int64_t rows, int64_t columns) const {
    const Tensor padded =
        mmlaplace::zeros({sizes_.batch, sizes_.heads, rows, columns}, matrices, type_of<T>());
    padded.narrow(2, 0, matrices.size(2)).narrow(3, 0, matrices.size(3)).copy_(matrices);
    return padded.view({heads_, rows, columns});
  }
  // The opposite.
  Tensor cut(const Tensor& matrices, int64_t rows, int64_t columns) const {
    return matrices.narrow(1, 0, rows)
        .narrow(2, 0, columns)
        .contiguous()
        .view({sizes_.batch, sizes_.heads, rows, columns});
  }
  static Tensor piece(const Tensor& sums, int64_t first, int64_t rows, int64_t columns) {
    return sums.narrow(1, first, rows * columns).view({sums.size(0), rows, columns});
  }
  Tensor tokens_like(const Tensor& tokens) const {
    return empty({sizes_.batch, tokens.size(2), sizes_.heads, sizes_.dims}, tokens);
  }

  // With tickets, the last blocks add the sums of the parts, if small matrices are joined to them.
  Pass pass(const Tensor& tokens, const Parts& parts, const Tensor& values = {},
            int* tickets = nullptr) const {
    return {token_tiles::source_of<S>(tokens),
            values.defined() ? token_tiles::source_of<S>(values) : token_tiles::Source<S>{},
            {pointer(table_), sizes_.queries,
             table_.defined() ? static_cast<int>(table_.size(1)) : 0, adjacent_},
            pointer(marks_),
            nullptr,
            exponent(),
            static_cast<T>(Metric::derivative(bandwidth_)),
            sizes_.heads,
            parts.tokens,
            parts.count,
            parts.length,
            static_cast<int>(sizes_.marks),
            static_cast<int>(sizes_.dims),
            joined_ ? tickets : nullptr,
            parts.group()};
  }

  // The kernel for tensor cores, if this call may take it. Small tiles have none.
  template <class Kernel>
  Kernel pick(Kernel kernel, Kernel for_tensor_cores) const {
    const bool other = for_tensor_cores != kernel && device_.tensor_cores(for_tensor_cores);
    return other ? for_tensor_cores : kernel;
  }

  template <class Kernel, class... Arguments>
  void launch(Kernel kernel, const Parts& parts, RowsOf rows_of, Pass pass,
              Arguments... arguments) const {
    const int64_t blocks = heads_ * parts.count;
    int64_t bytes = bytes_of(sizes_, rows_of);
    Tensor memory;
    if (bytes > device_.shared_memory()) {
      memory = empty({blocks * bytes / static_cast<int64_t>(sizeof(T))}, marks_);
      pass.memory = pointer(memory);
      bytes = 0;
    }
    device_.launch("nystrom_attention", kernel, blocks, token_tiles::kThreads, bytes, pass,
                   arguments...);
  }

  // factor * a b. By a kernel of our own, as cuBLAS may use TF32, whose ten bits of mantissa are
  // not enough for an inverse.
  Tensor product(const Tensor& a, const Tensor& b, double factor = 1) const {
    const Tensor out = empty({heads_, a.size(1), b.size(2)}, a);
    if (out.numel() == 0) return out;
    device_.launch("nystrom_attention", device::product_kernel<T>,
                   ceil_div(out.numel(), token_tiles::kThreads), token_tiles::kThreads, 0,
                   matrices(a), matrices(b), static_cast<T>(factor), pointer(out), out.numel(),
                   a.size(1), b.size(2), a.size(2));
    return out;
  }

  // Of the kernel over the queries: its mean and covariance for the backward, and padded the mean
  // and P^T Cov P.
  struct Moments {
    Tensor mean, covariance, shift, form;
  };
  Moments moments_of(const Tensor& q) const {
    const int64_t m = sizes_.marks;
    const Moments all{place(m), place(m, m), empty({heads_, m_}, marks_),
                      empty({heads_, m_, m_}, marks_)};
    const Tensor inverse = of_heads(inputs_.inverse);
    const Parts parts = parts_of(sizes_.queries);
    const Tensor parts_sums = empty({heads_, parts.count, m_ * (m_ + 1)}, marks_);
    launch(pick(device::moments_kernel<Metric, Tokens, S, T>,
                device::moments_kernel<Metric, Tokens, S, T, TensorCores>),
           parts, device::Rows::moments, pass(q, parts, {}, tickets_.data_ptr<int>()),
           pointer(parts_sums),
           device::Whitener<T>{matrices(inverse), pointer(all.shift), pointer(all.mean),
                               pointer(all.covariance), pointer(all.form)});
    if (joined_) return all;
    const Tensor total = parts_sums.sum(1);
    const double share = 1 / static_cast<double>(sizes_.queries);
    const Tensor apart = total.narrow(1, 0, m_) * share;  // the mean less the shift
    const Tensor mean = all.shift + apart;
    const Tensor covariance =
        piece(total, m_, m_, m_) * share + product(apart.unsqueeze(2), apart.unsqueeze(1), -1);
    return {cut(mean.unsqueeze(1), 1, m).squeeze(2), cut(covariance, m, m), mean,
            whitener(padded(inputs_.inverse, m_, m_), covariance)};
  }

  // P^T Cov P
  Tensor whitener(const Tensor& inverse, const Tensor& covariance) const {
    return product(inverse.transpose(1, 2), product(covariance, inverse));
  }

  // The sums over tokens of r_j (b_j - shift) v_j^T, (batch_heads, m, d), and of v_j,
  // (batch_heads, d). Without a form, r_j is 1.
  std::tuple<Tensor, Tensor> mix(const Tensor& tokens, const Tensor& values, const Tensor& shift,
                                 const Tensor& form, const device::Mixer<T>& mixer) const {
    const Parts parts = parts_of(tokens.size(2));
    const Tensor parts_sums = empty({heads_, parts.count, (m_ + 1) * d_}, marks_);
    int* tickets = tickets_.data_ptr<int>() + heads_ * parts_of(sizes_.queries).tickets();
    launch(pick(device::mix_kernel<Metric, Tokens, S, T>,
                device::mix_kernel<Metric, Tokens, S, T, TensorCores>),
           parts, device::Rows::mix, pass(tokens, parts, values, tickets), pointer(shift),
           pointer(form), eps_, pointer(parts_sums), mixer);
    const Tensor total = joined_ ? parts_sums.narrow(1, 0, 1).squeeze(1) : parts_sums.sum(1);
    return {piece(total, 0, m_, d_), total.narrow(1, m_ * d_, d_)};
  }
};

// Calls f(passes, dtype) with the passes for tokens of this dtype. If the widest of them has no
// room for its tiles in shared memory, these are the passes with small tiles and without halves.
template <class Metric, class Device, class F>
void with_passes(const Device& device, const Sizes& sizes, ScalarType type, const Inputs& inputs,
                 RowsOf widest, const F& f) {
  MMLAPLACE_DISPATCH(type, "nystrom_attention", [&] {
    using T = Wide<scalar_t>;
    if constexpr (std::is_same<T, float>::value) {
      using Fast = Passes<Device, Metric, device::kTokens, scalar_t>;
      if (Fast::bytes_of(sizes, widest) <= device.shared_memory()) {
        return f(Fast(device, sizes, inputs), type);
      }
    }
    f(Passes<Device, Metric, device::kFewTokens, T>(device, sizes, inputs), type_of<T>());
  });
}

inline Sizes check_for_gpu(const Tensor& q, const Tensor& k, const Tensor& v,
                           const Inputs& inputs) {
  const Sizes sizes = check(q, k, v, inputs);
  // The kernels count the values of a matrix in 32 bits.
  MMLAPLACE_CHECK(
      sizes.marks <= 32768 && sizes.dims <= 32768,
      "nystrom_attention: on a GPU there can be at most 32768 landmarks and channels, got ",
      sizes.marks, " and ", sizes.dims);
  return sizes;
}

template <class Device, class Metric>
Results Attention<Device, Metric>::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Inputs& inputs) {
  const Sizes sizes = check_for_gpu(q, k, v, inputs);
  const Device gpu(q);
  Results results;
  with_passes<Metric>(gpu, sizes, q.scalar_type(), inputs, device::Rows::mix,
                      [&](const auto& passes, ScalarType type) {
                        results = q.numel() > 0 ? passes.forward(q.to(type), k.to(type), v.to(type))
                                                : passes.empty_forward(q);
                      });
  std::get<0>(results) = std::get<0>(results).to(q.scalar_type());
  return results;
}

template <class Device, class Metric>
Gradients Attention<Device, Metric>::backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                              const Tensor& v, const Inputs& inputs,
                                              const Tensor& mean, const Tensor& covariance,
                                              const Tensor& mixed) {
  const Sizes sizes = check_for_gpu(q, k, v, inputs);
  check_gradient(sizes, grad, q, mean, covariance, mixed, inputs.whitening);
  const Device gpu(q);
  Gradients gradients;
  with_passes<Metric>(gpu, sizes, q.scalar_type(), inputs, device::Rows::key_gradients,
                      [&](const auto& passes, ScalarType type) {
                        gradients = q.numel() > 0
                                        ? passes.backward(grad.to(type), q.to(type), k.to(type),
                                                          v.to(type), mean, covariance, mixed)
                                        : passes.empty_backward(q, k);
                      });
  auto& [dq, dk, dv, dlandmarks, dinverse, dscale] = gradients;
  return {dq.to(q.scalar_type()),
          dk.to(q.scalar_type()),
          dv.to(q.scalar_type()),
          dlandmarks.to(inputs.landmarks.scalar_type()),
          dinverse.to(inputs.inverse.scalar_type()),
          dscale.to(inputs.scale.scalar_type())};
}

}  // namespace nystrom
}  // namespace mmlaplace
