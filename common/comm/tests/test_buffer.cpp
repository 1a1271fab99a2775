#include "common/comm/tests/test_buffer.h"

#include <cmath>
#include <cstring>

namespace escalera {

double test_value(int rank, Index i, bool rough) {
  const Index mixed = (i * 7919 + rank * 104729 + 13) % 251;
  if (!rough) return static_cast<double>(mixed % 17 - 8);  // sums of up to 16 of them are exact even in bfloat16
  return std::ldexp(1.0 + static_cast<double>(mixed) / 251.0, static_cast<int>((mixed * 31 + rank * 7) % 21 - 10)) *
         (mixed % 3 == 0 ? -1 : 1);
}

TestBuffer::TestBuffer(Device& device, Index count, DType dtype)
    : device_(device), memory_(device.zeros(1, count, dtype, MemoryCategory::workspace)) {}

TestBuffer::TestBuffer(Device& device, Index count, DType dtype, int rank, Index first, bool rough)
    : TestBuffer(device, count, dtype) {
  set(0, count, [&](Index i) { return test_value(rank, first + i, rough); });
}

TestBuffer::TestBuffer(const TestBuffer& other) : TestBuffer(other.device_, other.memory_.size(), other.memory_.dtype()) {
  device_.copy(memory_.data(), other.memory_.data(), memory_.bytes());
}

std::vector<double> TestBuffer::get(Index begin, Index count) const {
  return to_host(device_, memory_.slice_flat(begin, count));
}

void TestBuffer::set(Index begin, Index count, const std::function<double(Index)>& value) {
  std::vector<double> values;
  for (Index i = 0; i < count; ++i) values.push_back(value(i));
  from_host(device_, values, memory_.slice_flat(begin, count));
}

std::vector<std::byte> TestBuffer::raw() const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(memory_.bytes()));
  device_.copy_to_host(bytes.data(), memory_.data(), memory_.bytes());
  return bytes;
}

std::vector<Index> test_counts() {
  return {0, 1, 3, 17, 1000, 4097, 100003};
}

}  // namespace escalera
