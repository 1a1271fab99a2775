// What the tests of communicators send around.
// defines: test_value(), TestBuffer, test_types, test_counts()
#pragma once

#include <vector>

#include "common/comm/communicator.h"

namespace escalera {

/// Element `i` of what `rank` brings in; deterministic, uneven, exactly representable in every type when `rough` is off,
/// else such that sums depend on their order.
double test_value(int rank, Index i, bool rough = false);

/// `count` elements of `dtype` with conversion to and from double.
class TestBuffer {
 public:
  TestBuffer(Index count, DType dtype) : count_(count), dtype_(dtype), bytes_(bytes()) {}
  /// Filled with test_value(rank, i + first).
  TestBuffer(Index count, DType dtype, int rank, Index first = 0, bool rough = false);

  BufferView view() { return {bytes_.data(), count_, dtype_}; }
  BufferView view(Index begin, Index count) {
    return {bytes_.data() + begin * size_of(dtype_), count, dtype_};
  }
  double get(Index i) const;
  void set(Index i, double value);
  const std::vector<std::byte>& raw() const { return bytes_; }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(count_ * size_of(dtype_)); }
  Index count_;
  DType dtype_;
  std::vector<std::byte> bytes_;
};

/// The types and sizes that the checks go through: none, one, odd, not divisible, and more than any chunk.
inline constexpr DType test_types[] = {DType::float32, DType::float64, DType::bfloat16};
std::vector<Index> test_counts();

}  // namespace escalera
