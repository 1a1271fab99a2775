// Conversions that need no CUDA header.
// defines: from_bfloat16(), to_bfloat16()
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace simulated_cuda {

inline float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// To the nearest, ties to even; every NaN becomes the same one.
inline std::uint16_t to_bfloat16(float value) {
  if (std::isnan(value)) return 0x7fff;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace simulated_cuda
