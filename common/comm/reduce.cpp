#include "common/comm/reduce.h"

#include <algorithm>
#include <array>

namespace escalera {
namespace {

template <class T>
void reduce(std::span<const void* const> sources, T* destination, Index count, ReduceOp op) {
  // Blocks that stay in the first-level cache: each source is read once, and nothing is written before the block of every
  // source has been read, so that the destination may be one of them.
  constexpr Index block = 1024;
  std::array<Accumulator<T>, block> sums;
  for (Index begin = 0; begin < count; begin += block) {
    const Index length = std::min(block, count - begin);
    const T* first = static_cast<const T*>(sources[0]) + begin;
    for (Index i = 0; i < length; ++i)
      sums[static_cast<std::size_t>(i)] = static_cast<Accumulator<T>>(first[i]);
    for (const void* source : sources.subspan(1)) {
      const T* next = static_cast<const T*>(source) + begin;
      if (op == ReduceOp::sum) {
        for (Index i = 0; i < length; ++i)
          sums[static_cast<std::size_t>(i)] += static_cast<Accumulator<T>>(next[i]);
      } else {
        for (Index i = 0; i < length; ++i) {
          const auto value = static_cast<Accumulator<T>>(next[i]);
          auto& largest = sums[static_cast<std::size_t>(i)];
          // the second comparison lets a NaN through, which a maximum over ranks must not hide
          largest = value > largest || value != value ? value : largest;
        }
      }
    }
    for (Index i = 0; i < length; ++i)
      destination[begin + i] = static_cast<T>(sums[static_cast<std::size_t>(i)]);
  }
}

}  // namespace

void reduce_in_rank_order(std::span<const void* const> sources, void* destination, Index count, DType dtype,
                          ReduceOp op) {
  dispatch(dtype, [&]<class T>() { reduce(sources, static_cast<T*>(destination), count, op); });
}

}  // namespace escalera
