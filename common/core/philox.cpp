#include "common/core/philox.h"

#include <cmath>
#include <numbers>

namespace escalera {
namespace {

std::uint32_t low(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}
std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

/// The upper 53 bits of two words as an integer: as many as a double holds exactly.
double top_53_bits(std::uint32_t lo, std::uint32_t hi) {
  return static_cast<double>(((static_cast<std::uint64_t>(hi) << 32) | lo) >> 11);
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_hi, std::uint64_t counter_lo) {
  // Multipliers chosen by Random123's authors for their avalanche; the key's increments ("Weyl sequence") are
  // the golden ratio and sqrt(3) - 1 as fractions of 2^32. Ten rounds are their recommendation; seven already
  // pass TestU01.
  constexpr std::uint64_t multiplier_0 = 0xD2511F53U, multiplier_1 = 0xCD9E8D57U;
  constexpr std::uint32_t increment_0 = 0x9E3779B9U, increment_1 = 0xBB67AE85U;
  std::array<std::uint32_t, 4> x = {low(counter_lo), high(counter_lo), low(counter_hi), high(counter_hi)};
  std::uint32_t key_0 = low(key), key_1 = high(key);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product_0 = multiplier_0 * x[0], product_1 = multiplier_1 * x[2];
    x = {high(product_1) ^ x[1] ^ key_0, low(product_1), high(product_0) ^ x[3] ^ key_1, low(product_0)};
    key_0 += increment_0;
    key_1 += increment_1;
  }
  return x;
}

double uniform(std::uint64_t key, std::uint64_t counter_hi, std::uint64_t counter_lo) {
  const auto x = philox(key, counter_hi, counter_lo);
  return top_53_bits(x[0], x[1]) * 0x1p-53;
}

double normal(std::uint64_t key, std::uint64_t counter_hi, std::uint64_t counter_lo) {
  const auto x = philox(key, counter_hi, counter_lo);
  // The radius needs a number of (0, 1]: the logarithm of 0 would be the one infinite weight in 2^53.
  const double radius = std::sqrt(-2.0 * std::log((top_53_bits(x[0], x[1]) + 1.0) * 0x1p-53));
  return radius * std::cos(2.0 * std::numbers::pi * 0x1p-53 * top_53_bits(x[2], x[3]));
}

std::uint64_t hash_name(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3U;
  }
  return hash;
}

}  // namespace escalera
