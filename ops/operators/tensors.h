// Inputs of the operators for runtimes, and checks of their shapes, without any runtime.
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace mmlaplace {
namespace operators {

using Shape = std::vector<int64_t>;

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream all;
  (all << ... << parts);
  return all.str();
}

inline std::string text(const Shape& shape) {
  std::string all = "(";
  for (const int64_t size : shape) all += (all.size() > 1 ? ", " : "") + std::to_string(size);
  return all + ")";
}

// An input of fp32 or of integers. It is absent where both pointers are null.
struct Input {
  const float* data = nullptr;
  const int64_t* integers = nullptr;
  Shape shape;
};

// The inputs of an operator. Those that are absent at the end need not be in it.
class Inputs {
 public:
  explicit Inputs(std::vector<Input> all) : all_(std::move(all)) {}
  const Input& operator[](size_t index) const { return index < all_.size() ? all_[index] : none_; }

 private:
  std::vector<Input> all_;
  Input none_;
};

inline void check(const char* op, const char* name, const Shape& shape, const Shape& expected) {
  if (shape != expected) {
    throw std::invalid_argument(
        text(op, ": ", name, " must be ", text(expected), ", got ", text(shape)));
  }
}

// How many matrices (m, m) are in an input (..., m, m).
inline int64_t count_matrices(const char* op, const Shape& shape) {
  if (shape.size() < 2 || shape.back() != shape[shape.size() - 2]) {
    throw std::invalid_argument(text(op, ": mat must be (..., m, m), got ", text(shape)));
  }
  int64_t count = 1;
  for (size_t axis = 0; axis + 2 < shape.size(); ++axis) count *= shape[axis];
  return count;
}

}  // namespace operators
}  // namespace mmlaplace
