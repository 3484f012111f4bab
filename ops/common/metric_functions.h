// Included once per instruction set; see cpu_dispatch.h. And once for the GPU.
//
// The functions of the metrics of metrics.h. V is a vector on the CPU and a number on the GPU. The
// namespace that includes this file has the functions `abs` and `sign` of V.
//
// An op with a metric of its own defines MMLAPLACE_METRIC_FUNCTIONS, the path of the file of its
// functions, seen from here.

template <class V>
MMLAPLACE_INLINE V accumulate(Laplacian, V sum, V difference) {
  return sum + abs(difference);
}
template <class V>
MMLAPLACE_INLINE V slope(Laplacian, V weight, V difference) {
  return weight * sign(difference);
}

template <class V>
MMLAPLACE_INLINE V accumulate(Gaussian, V sum, V difference) {
  return sum + difference * difference;
}
template <class V>
MMLAPLACE_INLINE V slope(Gaussian, V weight, V difference) {
  return weight * difference;
}

#ifdef MMLAPLACE_METRIC_FUNCTIONS
#include MMLAPLACE_METRIC_FUNCTIONS
#endif
