// The sizes of a call of nystrom_attention, and how its tokens are divided, without ATen.
#pragma once

#include "../common/strided.h"

namespace mmlaplace {
namespace nystrom {

struct Sizes {
  int64_t batch, heads, queries, keys, marks, dims;
  int64_t batch_heads() const { return batch * heads; }
};

// Into how many parts the tokens of a head are divided, so that small batches also have work for
// several threads. It depends on the shapes alone, so that results do not depend on the threads.
inline int64_t parts_of(int64_t batch_heads, int64_t tokens) {
  if (batch_heads == 0) return 1;
  const int64_t wanted = ceil_div(16, batch_heads), most = ceil_div(tokens, 512);
  return wanted < most ? wanted : (most > 1 ? most : 1);
}

}  // namespace nystrom
}  // namespace mmlaplace
