// Rotary positions on a CPU, and the length of the tiles of tokens that token_rows.h fills.
#pragma once

#include "../strided.h"

namespace mmlaplace {

// Tokens of a tile.
constexpr int64_t kTile = 128;

// The angles by which pairs of channels turn: table[0][pair][token] has the cosines, table[1] the
// sines. A pair is the channels c and c + pairs or, if adjacent, 2 c and 2 c + 1.
template <class T>
struct Rotation {
  const T* table = nullptr;
  int64_t pairs = 0, tokens = 0;
  bool adjacent = false;
};

}  // namespace mmlaplace
