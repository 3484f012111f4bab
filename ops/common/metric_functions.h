// The metrics of metrics.h, for CPU vectors and GPU threads alike: abs and sign of V are in scope.

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
