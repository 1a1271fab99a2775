// What the attention kernels need from vectors beyond simd.h: powers of two, transposition, and rows of any length.
// defines: exp2(), transpose(), load_row(), store_row()
#pragma once

#include "common/ops/cpu/simd.h"

namespace escalera::cpu {
namespace {

constexpr double ln_2 = 0.693147180559945309417;
constexpr double log2_e = 1.44269504088896340736;

/// What exp2() has to know about a floating point type.
template <class Real>
struct FloatFormat;

template <>
struct FloatFormat<float> {
  using Integer = std::uint32_t;
  static constexpr float lowest = -3.4e38F;
  static constexpr float infinity = __builtin_inff();
  static constexpr int mantissa_bits = 23;
  static constexpr Integer one = 0x3f800000;
  static constexpr float smallest_exponent = -126;
  static constexpr int terms = 7;  // of Taylor's series; the first one left out is 0.35^8 / 8! = 5e-9
};

template <>
struct FloatFormat<double> {
  using Integer = std::uint64_t;
  static constexpr double lowest = -1.7e308;
  static constexpr double infinity = __builtin_inf();
  static constexpr int mantissa_bits = 52;
  static constexpr Integer one = 0x3ff0000000000000;
  static constexpr double smallest_exponent = -1022;
  static constexpr int terms = 13;  // 0.35^14 / 14! = 5e-18
};

template <class Real>
constexpr Real inverse_factorial(int k) {
  double factorial = 1;
  for (int i = 2; i <= k; ++i) factorial *= i;
  return static_cast<Real>(1 / factorial);
}

/// 2^x for x <= 127 (double: 1023), relative error about 1e-7 (1e-15). Below the smallest normal number exactly 0, so
/// that no product that follows meets a slow denormal; NaN for NaN. With n the integer nearest to x,
/// 2^x = 2^n e^((x - n) ln 2), and the second factor is Taylor's polynomial.
template <class Real>
ESCALERA_INLINE Vec<Real> exp2(Vec<Real> x) {
  using Format = FloatFormat<Real>;
  using Integers = Vec<typename Format::Integer, lanes<Real>>;
  // Adding 1.5 * 2^mantissa_bits leaves no bits for a fraction: the lowest bits of the sum are n.
  constexpr Real rounder =
      static_cast<Real>(1.5 * static_cast<double>(std::int64_t{1} << Format::mantissa_bits));
  const Vec<Real> shifted = x + rounder;
  const Vec<Real> t = (x - (shifted - rounder)) * static_cast<Real>(ln_2);
  Vec<Real> series = splat(inverse_factorial<Real>(Format::terms));
#pragma GCC unroll 16
  for (int k = Format::terms - 1; k >= 0; --k) series = series * t + inverse_factorial<Real>(k);
  const auto power_of_two =
      bits_as<Vec<Real>>((bits_as<Integers>(shifted) << Format::mantissa_bits) + Format::one);
  return x < Format::smallest_exponent ? Vec<Real>{} : series * power_of_two;
}

// ---- transposition ------------------------------------------------------------------------------------------------

/// In a tile whose rows a and b are `step` apart, the off-diagonal elements of each 2 x 2 square change places.
template <class Real, int step, int... lane>
ESCALERA_INLINE void exchange(Vec<Real>& a, Vec<Real>& b, std::integer_sequence<int, lane...>) {
  constexpr int count = lanes<Real>;
  const Vec<Real> first = __builtin_shufflevector(a, b, ((lane & step) == 0 ? lane : count + lane - step)...);
  b = __builtin_shufflevector(a, b, ((lane & step) == 0 ? lane + step : count + lane)...);
  a = first;
}

/// Transposes a square tile: squares of half its size, then of a quarter, ... down to single elements.
template <class Real, int step = lanes<Real> / 2>
ESCALERA_INLINE void transpose_tile(Vec<Real>* tile) {
#pragma GCC unroll 16
  for (int i = 0; i < lanes<Real>; ++i) {
    if ((i & step) == 0)
      exchange<Real, step>(tile[i], tile[i + step], std::make_integer_sequence<int, lanes<Real>>{});
  }
  if constexpr (step > 1) transpose_tile<Real, step / 2>(tile);
}

/// target[c * target_row + r] = source[r * source_row + c] * factor; rows and columns are multiples of the vector's width.
template <class Real>
ESCALERA_INLINE void transpose(Index rows, Index columns, const Real* source, Index source_row, Real factor,
                               Real* target, Index target_row) {
  constexpr int count = lanes<Real>;
  for (Index row = 0; row < rows; row += count) {
    for (Index column = 0; column < columns; column += count) {
      Vec<Real> tile[count];
#pragma GCC unroll 16
      for (int i = 0; i < count; ++i) tile[i] = load<Real>(source + (row + i) * source_row + column) * factor;
      transpose_tile<Real>(tile);
#pragma GCC unroll 16
      for (int i = 0; i < count; ++i) store<Real>(target + (column + i) * target_row + row, tile[i]);
    }
  }
}

// ---- rows of tensors, of any length; in the scratch they are padded with zeros ------------------------------------

/// Reads `size` elements and fills up with zeros to `padded`, a multiple of the vector's width.
template <class Real, class T>
ESCALERA_INLINE void load_row(const T* source, Index size, Index padded, Real* row) {
  for_lanes<Real>(size, [&](Index i, auto part) { store<Real>(row + i, load<Real>(source + i, part)); });
  for (Index i = (size + lanes<Real> - 1) / lanes<Real> * lanes<Real>; i < padded; i += lanes<Real>) {
    store<Real>(row + i, Vec<Real>{});
  }
}

/// Writes `size` elements of `row`, times `factor`.
template <class Real, class T>
ESCALERA_INLINE void store_row(const Real* row, Index size, Real factor, T* destination) {
  for_lanes<Real>(
      size, [&](Index i, auto part) { store<Real>(destination + i, load<Real>(row + i) * factor, part); });
}

}  // namespace
}  // namespace escalera::cpu
