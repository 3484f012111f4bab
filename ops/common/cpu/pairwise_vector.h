// Included once per instruction set; see cpu_dispatch.h.
//
// The inner loops of pairwise_cpu.h. S is the type of the values in memory, T the type that sums
// are taken in.
#include "simd.h"
// After simd.h, whose abs and sign it calls.
#include "../metric_functions.h"

// Converts `count` values that are a step apart, to or from the type of the sums.
template <class From, class To>
MMLAPLACE_INLINE void convert(const From* from, int64_t from_step, To* to, int64_t to_step,
                              int64_t count) {
  if (from_step == 1 && to_step == 1) {  // compilers vectorise this case
    for (int64_t c = 0; c < count; ++c) to[c] = static_cast<To>(from[c]);
  } else {
    for (int64_t c = 0; c < count; ++c) to[c * to_step] = static_cast<To>(from[c * from_step]);
  }
}

// How many of the last keys are not in panels. A panel holds a key per lane, and one that would be
// mostly empty, as the last of 49 landmarks leaves it, wastes time. The distance to such a key is
// summed with a channel per lane.
template <class T>
MMLAPLACE_INLINE int64_t keys_apart(int64_t num_keys, int64_t dims) {
  constexpr int64_t lanes = Vector<T>::lanes;
  return dims % lanes == 0 && num_keys % lanes < lanes / 2 ? num_keys % lanes : 0;
}

// Copies the keys into panels, [panel][channel][lane], and those that are not in panels after them,
// [key][channel].
template <class T, class S>
void pack_panels(const Slice<S>& keys, int64_t num_keys, int64_t dims, T* panels) {
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t in_panels = num_keys - keys_apart<T>(num_keys, dims);
  for (int64_t j = 0; j < in_panels; ++j) {
    T* panel = panels + j / lanes * lanes * dims + j % lanes;
    convert(keys.row(j), keys.column_stride, panel, lanes, dims);
  }
  for (int64_t j = in_panels; j < num_keys; ++j)
    convert(keys.row(j), keys.column_stride, panels + j * dims, 1, dims);
}

// The distances of kRows queries to Panels * lanes keys. The sums stay in registers.
template <class Metric, int Panels, class T>
MMLAPLACE_INLINE void distance_tile(const T* query, const T* panel, int64_t dims, T* distances,
                                    int64_t stride) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  V sums[kRows][Panels] = {};
  for (int64_t c = 0; c < dims; ++c) {
    for (int64_t r = 0; r < kRows; ++r) {
      const V value = broadcast<V>(query[r * dims + c]);
      for (int u = 0; u < Panels; ++u) {
        const V key = load<V>(panel + (u * dims + c) * lanes);
        sums[r][u] = accumulate(Metric{}, sums[r][u], value - key);
      }
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    for (int u = 0; u < Panels; ++u) store(distances + r * stride + u * lanes, sums[r][u]);
  }
}

// The distances of one query to the keys that are not in panels.
template <class Metric, class T>
MMLAPLACE_INLINE void distances_apart(const T* query, const T* keys, int64_t count, int64_t dims,
                                      T* distances) {
  using V = Vec<T>;
  for (int64_t j = 0; j < count; ++j) {
    V sum{};
    for (int64_t c = 0; c < dims; c += Vector<T>::lanes) {
      sum = accumulate(Metric{}, sum, load<V>(query + c) - load<V>(keys + j * dims + c));
    }
    distances[j] = sum_of_lanes(sum);
  }
}

// The kernel of at most kBlock queries with all keys.
template <class Metric, class T, class S>
void forward_block(const ForwardBlock<T, S>& block) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t dims = block.dims, stride = ceil_div(block.keys, lanes) * lanes;
  const int64_t apart = keys_apart<T>(block.keys, dims), in_panels = block.keys - apart;
  const int64_t panels = ceil_div(in_panels, lanes);
  for (int64_t r = 0; r < block.rows; ++r) {
    convert(block.queries.row(r), block.queries.column_stride, block.packed + r * dims, 1, dims);
  }
  int64_t count;
  for (int64_t p = 0; p < panels; p += count) {
    // Up to four panels at once, in groups of nearly equal size: 7 panels are 4 and 3.
    count = ceil_div(panels - p, ceil_div(panels - p, 4));
    const T* panel = block.panels + p * lanes * dims;
    for (int64_t r = 0; r < block.rows; r += kRows) {
      const T* query = block.packed + r * dims;
      T* distances = block.distances + r * stride + p * lanes;
      switch (count) {
        case 4: distance_tile<Metric, 4>(query, panel, dims, distances, stride); break;
        case 3: distance_tile<Metric, 3>(query, panel, dims, distances, stride); break;
        case 2: distance_tile<Metric, 2>(query, panel, dims, distances, stride); break;
        default: distance_tile<Metric, 1>(query, panel, dims, distances, stride);
      }
    }
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    distances_apart<Metric>(block.packed + r * dims, block.panels + in_panels * dims, apart, dims,
                            block.distances + r * stride + in_panels);
  }
  // The exponentials have a loop of their own, as the sums leave no registers for the coefficients
  // of the polynomial. The distances are still in the first cache.
  constexpr bool direct = std::is_same<T, S>::value;
  const int64_t whole = block.keys / lanes, rest = block.keys % lanes;
  for (int64_t r = 0; r < block.rows; ++r) {
    T* distances = block.distances + r * stride;
    S* out = block.out + r * block.keys;
    T* values = direct ? reinterpret_cast<T*>(out) : distances;
    for (int64_t j = 0; j < whole * lanes; j += lanes) {
      store(values + j, exp2_nonpositive(load<V>(distances + j) * block.exponent));
    }
    if (rest > 0) {
      const V last = exp2_nonpositive(load<V>(distances + whole * lanes) * block.exponent);
      for (int64_t lane = 0; lane < rest; ++lane) values[whole * lanes + lane] = last[lane];
    }
    if (!direct) convert(values, 1, out, 1, block.keys);
  }
}

template <class T, class S>
void pack_rows(const Slice<S>& slice, int64_t rows, int64_t dims, T* packed, int64_t padded) {
  for (int64_t r = 0; r < rows; ++r)
    convert(slice.row(r), slice.column_stride, packed + r * padded, 1, dims);
}

// Both gradients of at most kBlock queries with all keys. A vector holds channels of one query.
template <class Metric, class T, class S>
void backward_block(const BackwardBlock<T, S>& block) {
  using V = Vec<T>;
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t padded = ceil_div(block.dims, lanes) * lanes, num_keys = block.num_keys;
  const int64_t padded_keys = ceil_div(num_keys, kGradientKeys) * kGradientKeys;
  pack_rows(block.queries, block.rows, block.dims, block.packed, padded);
  for (int64_t r = 0; r < block.rows; ++r) {
    const S *grad = block.grad.row(r), *out = block.out.row(r);
    T* weight = block.weights + r * padded_keys;
    if (block.grad.column_stride == 1 &&
        block.out.column_stride == 1) {  // compilers vectorise this case
      for (int64_t j = 0; j < num_keys; ++j) {
        weight[j] = block.derivative * static_cast<T>(grad[j]) * static_cast<T>(out[j]);
      }
    } else {
      for (int64_t j = 0; j < num_keys; ++j) {
        weight[j] = block.derivative * static_cast<T>(grad[j * block.grad.column_stride]) *
                    static_cast<T>(out[j * block.out.column_stride]);
      }
    }
  }
  std::fill(block.weights + block.rows * padded_keys, block.weights + kBlock * padded_keys, T(0));

  const T *const queries = block.packed, *const keys = block.keys;
  T *const query_sums = block.query_sums, *const key_sums = block.key_sums;
  for (int64_t first = 0; first < padded_keys; first += kKeyBlock) {
    const int64_t last = std::min(first + kKeyBlock, padded_keys);
    for (int64_t c = 0; c < padded; c += lanes) {
      for (int64_t row = 0; row < block.rows; row += kRows) {
        V query[kRows], query_sum[kRows];
        for (int64_t r = 0; r < kRows; ++r) {
          query[r] = load<V>(queries + (row + r) * padded + c) + 0;  // turns -0 into 0, for sign()
          query_sum[r] = first == 0 ? V{} : load<V>(query_sums + (row + r) * padded + c);
        }
        const T* weights = block.weights + row * padded_keys;
        // Two keys at once: with one, every query would wait for the sum that the last one changed.
        for (int64_t j = first; j < last; j += kGradientKeys) {
          V key[kGradientKeys], key_sum[kGradientKeys];
          for (int64_t u = 0; u < kGradientKeys; ++u) {
            key[u] = load<V>(keys + (j + u) * padded + c);
            key_sum[u] = load<V>(key_sums + (j + u) * padded + c);
          }
          for (int64_t r = 0; r < kRows; ++r) {
            for (int64_t u = 0; u < kGradientKeys; ++u) {
              const V weight = broadcast<V>(weights[r * padded_keys + j + u]);
              const V change = slope(Metric{}, weight, query[r] - key[u]);
              query_sum[r] += change;
              key_sum[u] -= change;
            }
          }
          for (int64_t u = 0; u < kGradientKeys; ++u)
            store(key_sums + (j + u) * padded + c, key_sum[u]);
        }
        for (int64_t r = 0; r < kRows; ++r)
          store(query_sums + (row + r) * padded + c, query_sum[r]);
      }
    }
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    convert(query_sums + r * padded, 1, block.query_grads + r * block.dims, 1, block.dims);
  }
}
