// Scratch memory of the code for CPUs, without torch.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <new>

#include "../strided.h"

namespace mmlaplace {

inline int64_t round_up(int64_t value, int64_t step) { return ceil_div(value, step) * step; }

// Arrays, aligned to vectors, in one piece of memory. They are zeros unless the caller writes all
// that it reads.
template <class T>
class Arrays {
 public:
  explicit Arrays(std::initializer_list<int64_t> sizes, bool zero = true) {
    int64_t all = 0;
    for (const int64_t size : sizes) all += aligned(size);
    memory_.reset(static_cast<T*>(::operator new(all * sizeof(T), kAlignment)));
    next_ = memory_.get();
    if (zero) std::fill_n(next_, all, T(0));
  }
  T* take(int64_t size) {
    T* array = next_;
    next_ += aligned(size);
    return array;
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(T* memory) const { ::operator delete(memory, kAlignment); }
  };
  static int64_t aligned(int64_t size) { return round_up(size, 64 / sizeof(T)); }
  std::unique_ptr<T, Delete> memory_;
  T* next_;
};

}  // namespace mmlaplace
