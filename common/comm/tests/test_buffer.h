// What the tests of communicators send around.
// defines: test_value(), TestBuffer, test_types, test_counts()
#pragma once

#include <functional>
#include <vector>

#include "common/comm/communicator.h"

namespace escalera {

/// Element `i` of what `rank` brings in; deterministic, uneven, exactly representable in every type when `rough` is off,
/// else such that sums depend on their order.
double test_value(int rank, Index i, bool rough = false);

/// `count` elements of `dtype` on `device`, with conversion to and from double.
class TestBuffer {
 public:
  /// Zeros.
  TestBuffer(Device& device, Index count, DType dtype);
  /// Filled with test_value(rank, i + first).
  TestBuffer(Device& device, Index count, DType dtype, int rank, Index first = 0, bool rough = false);
  /// With elements of its own.
  TestBuffer(const TestBuffer& other);
  TestBuffer(TestBuffer&&) = default;

  BufferView view() { return memory_; }
  BufferView view(Index begin, Index count) { return memory_.slice_flat(begin, count); }
  /// Element `i`, or elements [begin, begin + count), when the device has done all that it was given. Blocks.
  /// @{
  double get(Index i) const { return get(i, 1)[0]; }
  std::vector<double> get(Index begin, Index count) const;
  /// @}
  /// Replaces element `i`, or elements [begin, begin + count) by value(0), value(1), ...
  /// @{
  void set(Index i, double value) {
    set(i, 1, [&](Index) { return value; });
  }
  void set(Index begin, Index count, const std::function<double(Index)>& value);
  /// @}
  /// All bytes.
  std::vector<std::byte> raw() const;

 private:
  Device& device_;
  Tensor memory_;
};

/// The types and sizes that the checks go through: none, one, odd, not divisible, and more than any chunk.
inline constexpr DType test_types[] = {DType::float32, DType::float64, DType::bfloat16};
std::vector<Index> test_counts();

}  // namespace escalera
