// The peak that the benchmark of the ops measures kernels against: |a - b|, summed in registers on
// all threads of a device, without memory. Returns the number of differences taken.
//
// No part of the library: the benchmark compiles the files of this folder when it runs.
#include "../common/tensor.h"

MMLAPLACE_NAMESPACE(mmlaplace_benchmarks);

MMLAPLACE_LIBRARY_FRAGMENT(mmlaplace_benchmarks, library) {
  library.def("difference_peak(Tensor like, int steps) -> int");
}
