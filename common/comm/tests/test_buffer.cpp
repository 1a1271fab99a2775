#include "common/comm/tests/test_buffer.h"

#include <cmath>
#include <cstring>

namespace escalera {

double test_value(int rank, Index i, bool rough) {
  const Index mixed = (i * 7919 + rank * 104729 + 13) % 251;
  if (!rough)
    return static_cast<double>(mixed % 17 - 8);  // sums of up to 16 of them are exact even in bfloat16
  return std::ldexp(1.0 + static_cast<double>(mixed) / 251.0,
                    static_cast<int>((mixed * 31 + rank * 7) % 21 - 10)) *
         (mixed % 3 == 0 ? -1 : 1);
}

TestBuffer::TestBuffer(Index count, DType dtype, int rank, Index first, bool rough)
    : TestBuffer(count, dtype) {
  for (Index i = 0; i < count; ++i) set(i, test_value(rank, first + i, rough));
}

double TestBuffer::get(Index i) const {
  return dispatch(dtype_, [&]<class T>() {
    T value;
    std::memcpy(&value, bytes_.data() + i * size_of(dtype_), sizeof value);
    return static_cast<double>(static_cast<Accumulator<T>>(value));
  });
}

void TestBuffer::set(Index i, double value) {
  dispatch(dtype_, [&]<class T>() {
    const T stored = static_cast<T>(static_cast<Accumulator<T>>(value));
    std::memcpy(bytes_.data() + i * size_of(dtype_), &stored, sizeof stored);
  });
}

std::vector<Index> test_counts() {
  return {0, 1, 3, 17, 1000, 4097, 100003};
}

}  // namespace escalera
