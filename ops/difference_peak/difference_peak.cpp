// What tools/benchmarks/benchmark_ops.py measures kernels against: |a - b| summed in registers on
// all threads of a device, without memory. Returns the number of differences taken.
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(mmlaplace, library) {
  library.def("_difference_peak(Tensor like, int steps) -> int");
}
