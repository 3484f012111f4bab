// Tokens in tensors as GPU kernels read them.
#pragma once

#include "../tensor.h"

#include <cstdint>

#include "../pairwise.h"
#include "token_tiles.cuh"

namespace mmlaplace {
namespace token_tiles {

// Tokens (B, heads, N, d) with any strides.
template <class S>
Source<S> source_of(const Tensor& tensor) {
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
  const auto strides = strides_of(tensor);
  return {tensor.data_ptr<S>(), strides,
          strides.column == 1 && tensor.size(3) % 4 == 0 && strides.batch % 4 == 0 &&
              strides.head % 4 == 0 && strides.row % 4 == 0 && address % alignof(Packed<S>) == 0};
}

}  // namespace token_tiles
}  // namespace mmlaplace
