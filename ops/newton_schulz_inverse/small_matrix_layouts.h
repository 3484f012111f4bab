// Which layout of small_matrix_device.cuh a matrix has. There is no CUDA here, so that tests can
// also run what uses it on a CPU.
#pragma once

#include "../common/matrices.h"

#include <type_traits>

namespace mmlaplace {
namespace cuda {

template <int Value>
using Constant = std::integral_constant<int, Value>;

// Calls function(Grid, Tile) with the smallest layout for matrices of m rows.
template <class Function>
void with_small_layout(const char* op, int64_t m, const Function& function) {
  check_rows(op, m, 64, "GPU");
  if (m <= 16) return function(Constant<8>{}, Constant<2>{});
  if (m <= 32) return function(Constant<8>{}, Constant<4>{});
  if (m <= 40) return function(Constant<8>{}, Constant<5>{});
  if (m <= 56) return function(Constant<8>{}, Constant<7>{});  // 49 landmarks
  function(Constant<8>{}, Constant<8>{});
}

template <class Function>
void with_layout(const char* op, int64_t m, const Function& function) {
  check_rows(op, m, 128, "GPU");
  if (m <= 64) return with_small_layout(op, m, function);
  if (m <= 96) return function(Constant<16>{}, Constant<6>{});
  function(Constant<16>{}, Constant<8>{});
}

}  // namespace cuda
}  // namespace mmlaplace
