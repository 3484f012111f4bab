// The operators for ONNX Runtime and OpenVINO: their attributes, and what computes them. All are
// fp32, on a CPU, in the domain "mmlaplace". The output of each is shaped like its first input.
//
// Each has the same parts. `inputs` is the number of its inputs, of which the first `required` must
// be there; all are fp32 but the one at `integers`, if there is one. attributes(f) calls f(name,
// value) for all attributes. compute() has its kernels in a source of its own, since these are
// compiled once per instruction set.
#pragma once

#include "tensors.h"

namespace mmlaplace {
namespace operators {

constexpr size_t kNone = ~size_t{0};

// (mat + ridge I)^-1 of matrices (..., m, m), see mmlaplace/ops/cholesky_inverse.py.
struct CholeskyInverse {
  static constexpr const char* name = "CholeskyInverse";
  static constexpr size_t inputs = 1, required = 1, integers = kNone;
  float ridge = 0;

  template <class F>
  void attributes(F&& f) {
    f("ridge", ridge);
  }
  void compute(const Inputs& inputs, float* out) const;
};

// The iteration for matrices (..., m, m) from I / |P| or, with the scales alpha (...), from
// alpha P, see mmlaplace/ops/newton_schulz_inverse.py.
struct NewtonSchulzInverse {
  static constexpr const char* name = "NewtonSchulzInverse";
  static constexpr size_t inputs = 2, required = 1, integers = kNone;
  float ridge = 0;
  int64_t num_iters = 1;

  template <class F>
  void attributes(F&& f) {
    f("ridge", ridge), f("num_iters", num_iters);
  }
  void compute(const Inputs& inputs, float* out) const;
};

// Tokens q, k, v (B, tokens, heads, d), as a linear leaves them, landmarks (B, heads, m, d),
// inverse (B, heads, m, m), scale (B, heads) and rotary (2, pairs, N), which may be absent; see
// mmlaplace/ops/nystrom_attention.py. A negative `whitening` is none.
struct NystromAttention {
  static constexpr const char* name = "NystromAttention";
  static constexpr size_t inputs = 7, required = 6, integers = kNone;
  std::string kernel;
  float bandwidth = 1, whitening = -1;
  int64_t adjacent = 0;

  template <class F>
  void attributes(F&& f) {
    f("kernel", kernel), f("bandwidth", bandwidth);
    f("whitening", whitening), f("adjacent", adjacent);
  }
  void compute(const Inputs& inputs, float* out) const;
};

// As NystromAttention without a scale, see mmlaplace/ops/normalized_nystrom_attention.py.
struct NormalizedNystromAttention {
  static constexpr const char* name = "NormalizedNystromAttention";
  static constexpr size_t inputs = 6, required = 5, integers = kNone;
  std::string kernel;
  float bandwidth = 1, floor = 0;
  int64_t adjacent = 0;

  template <class F>
  void attributes(F&& f) {
    f("kernel", kernel), f("bandwidth", bandwidth);
    f("floor", floor), f("adjacent", adjacent);
  }
  void compute(const Inputs& inputs, float* out) const;
};

// The whole mixing rule of LaplacianAttention, see mmlaplace/ops/landmark_attention.py: landmarks
// that are means of the tokens in cells of their map, the inverse of their kernel, and one of the
// attentions above. Inputs are q, k, v (B, N, heads, d), map (4) with its height and width and the
// rows and columns of cells, gamma (heads) and rotary (2, pairs, N), which may be absent. Cells are
// `ratio` tokens long and high if it is not 0. With a `floor` that is not negative, rows are
// normalised.
struct LandmarkAttention {
  static constexpr const char* name = "LandmarkAttention";
  static constexpr size_t inputs = 6, required = 4, integers = 3;
  std::string kernel;
  float bandwidth = 1, whitening = -1, floor = -1, ridge = 0;
  int64_t adjacent = 0, ratio = 0, of_queries = 0;

  template <class F>
  void attributes(F&& f) {
    f("kernel", kernel), f("bandwidth", bandwidth), f("whitening", whitening);
    f("floor", floor), f("ridge", ridge), f("adjacent", adjacent);
    f("ratio", ratio), f("of_queries", of_queries);
  }
  void compute(const Inputs& inputs, float* out) const;
};

// Attention whose weights are products of features, see mmlaplace/ops/linear_attention.py, with as
// many channels of q and k as of v. Inputs are q (B, N, heads, d), k and v (B, n, heads, d), the
// numerator top_q and top_k, shaped like q and k, or none, and with the features "powers" of
// PolaFormer, see mmlaplace/models/layers/pola_attention.py, their power and shift (heads, 1, d).
struct LinearAttention {
  static constexpr const char* name = "LinearAttention";
  static constexpr size_t inputs = 7, required = 3, integers = kNone;
  std::string features;
  float eps = 0;
  int64_t streams = 1;

  template <class F>
  void attributes(F&& f) {
    f("features", features), f("eps", eps), f("streams", streams);
  }
  void compute(const Inputs& inputs, float* out) const;
};

}  // namespace operators
}  // namespace mmlaplace
