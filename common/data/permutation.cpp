#include "common/data/permutation.h"

#include <bit>

#include "common/core/philox.h"

namespace escalera {
namespace {

/// One pass of the network over [0, 4^half_bits). Each round replaces one half by its exclusive or with a
/// hash of the other, which can be undone whatever the hash is: so the whole is a permutation.
std::uint64_t feistel(std::uint64_t value, int half_bits, std::uint64_t key, std::uint64_t stream) {
  constexpr std::uint64_t rounds = 8;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits, right = value & mask;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const std::uint64_t mixed = left ^ (philox(key, stream, (round << 32) | right)[0] & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits) | right;
}

}  // namespace

Index permute(Index index, Index count, std::uint64_t key, std::uint64_t stream) {
  require(index >= 0 && index < count, "index {} of a permutation of {}", index, count);
  const auto limit = static_cast<std::uint64_t>(count);
  const int half_bits = (static_cast<int>(std::bit_width(limit - 1)) + 1) / 2;
  auto value = static_cast<std::uint64_t>(index);
  // The domain is less than four times as large as [0, count), so this takes fewer than four passes on
  // average. It ends: the cycle through `index` comes back to `index`, which is inside.
  do {
    value = feistel(value, half_bits, key, stream);
  } while (value >= limit);
  return static_cast<Index>(value);
}

}  // namespace escalera
