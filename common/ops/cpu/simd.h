// Vectors of the processor's width through GCC's and Clang's vector extensions: + - * / and comparisons are the compiler's;
// here are loads, stores, conversions, sums and the exponential. Only kernel units include this, and everything has internal
// linkage (kernels_v4.cpp says why).
// defines: Vec, lanes, Whole, Part, load(), store(), for_lanes(), splat(), horizontal_sum(), horizontal_max(), exp(), sqrt()
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <type_traits>
#include <utility>

#include "common/ops/cpu/kernels.h"

#define ESCALERA_INLINE inline __attribute__((always_inline))

namespace escalera::cpu {
namespace {

template <class T, int count>
struct VectorOf {
  typedef T type __attribute__((vector_size(count * sizeof(T))));
};

/// How many numbers of type Wide (float or double) one vector holds.
template <class Wide>
constexpr int lanes = ESCALERA_VECTOR_BYTES / sizeof(Wide);

template <class T, int count = lanes<T>>
using Vec = typename VectorOf<T, count>::type;

template <class To, class From>
ESCALERA_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

template <class Wide>
ESCALERA_INLINE Vec<Wide> splat(Wide value) {
  return Vec<Wide>{} + value;
}

// ---- loads and stores ---------------------------------------------------------------------------------------------------
// Arithmetic is done in Wide; memory may hold float, double or bfloat16 (Bits16).

/// Rounds to nearest even, as bfloat16's constructor does. The processor's own conversion instruction is not used: it
/// flushes tiny numbers to zero, and results would depend on the machine.
template <int count>
ESCALERA_INLINE Vec<Bits16, count> to_bfloat16(Vec<float, count> value) {
  using U = Vec<std::uint32_t, count>;
  const U bits = bits_as<U>(value);
  const U rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  const U quiet_nan = bits | 0x400000U;
  const U chosen = (bits & 0x7fffffffU) > 0x7f800000U ? quiet_nan : rounded;
  return __builtin_convertvector(chosen >> 16, Vec<Bits16, count>);
}

template <int count>
ESCALERA_INLINE Vec<float, count> from_bfloat16(Vec<Bits16, count> value) {
  return bits_as<Vec<float, count>>(__builtin_convertvector(value, Vec<std::uint32_t, count>) << 16);
}

template <class Wide, class T>
ESCALERA_INLINE Vec<Wide> load(const T* from) {
  constexpr int count = lanes<Wide>;
  Vec<T, count> raw;
  __builtin_memcpy(&raw, from, sizeof raw);
  if constexpr (std::is_same_v<T, Bits16>) {
    const auto value = from_bfloat16<count>(raw);
    if constexpr (std::is_same_v<Wide, float>) {
      return value;
    } else {
      return __builtin_convertvector(value, Vec<Wide>);
    }
  } else if constexpr (std::is_same_v<T, Wide>) {
    return raw;
  } else {
    return __builtin_convertvector(raw, Vec<Wide>);
  }
}

template <class Wide, class T>
ESCALERA_INLINE void store(T* to, Vec<Wide> value) {
  constexpr int count = lanes<Wide>;
  Vec<T, count> raw;
  if constexpr (std::is_same_v<T, Wide>) {
    raw = value;
  } else if constexpr (std::is_same_v<T, Bits16>) {
    if constexpr (std::is_same_v<Wide, float>) {
      raw = to_bfloat16<count>(value);
    } else {
      raw = to_bfloat16<count>(__builtin_convertvector(value, Vec<float, count>));
    }
  } else {
    raw = __builtin_convertvector(value, Vec<T, count>);
  }
  __builtin_memcpy(to, &raw, sizeof raw);
}

/// All lanes of a vector, or only the first `count`: the end of a row that the width does not divide.
struct Whole {};
struct Part {
  Index count;
};

template <class Wide, class T>
ESCALERA_INLINE Vec<Wide> load(const T* from, Whole) {
  return load<Wide>(from);
}
/// Lanes beyond the part are zero.
template <class Wide, class T>
ESCALERA_INLINE Vec<Wide> load(const T* from, Part part) {
  T padded[lanes<Wide>] = {};
  for (Index i = 0; i < part.count; i++) padded[i] = from[i];
  return load<Wide>(padded);
}
template <class Wide, class T>
ESCALERA_INLINE void store(T* to, Vec<Wide> value, Whole) {
  store<Wide>(to, value);
}
template <class Wide, class T>
ESCALERA_INLINE void store(T* to, Vec<Wide> value, Part part) {
  T padded[lanes<Wide>];
  store<Wide>(padded, value);
  for (Index i = 0; i < part.count; i++) to[i] = padded[i];
}

/// Calls body(i, lanes) for each vector of [0, count), with Whole or, at the end, Part.
template <class Wide, class Body>
ESCALERA_INLINE void for_lanes(Index count, Body body) {
  Index i = 0;
  for (; i + lanes<Wide> <= count; i += lanes<Wide>) body(i, Whole{});
  if (i < count) body(i, Part{count - i});
}

// ---- across lanes -------------------------------------------------------------------------------------------------------

/// Lane i gets lane (i + distance) modulo the width.
template <int distance, class V, int... lane>
ESCALERA_INLINE V rotate(V v, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(v, v, (lane + distance) % static_cast<int>(sizeof...(lane))...);
}

/// Folds halves onto each other until lane 0 holds the whole: a fixed order, whatever the compiler does.
template <class Wide, int distance, class Combine>
ESCALERA_INLINE Vec<Wide> fold(Vec<Wide> v, Combine combine) {
  if constexpr (distance == 0) {
    return v;
  } else {
    const Vec<Wide> other = rotate<distance>(v, std::make_integer_sequence<int, lanes<Wide>>{});
    return fold<Wide, distance / 2>(combine(v, other), combine);
  }
}

template <class Wide>
ESCALERA_INLINE Vec<Wide> larger(Vec<Wide> a, Vec<Wide> b) {
  return a > b ? a : b;
}

template <class Wide>
ESCALERA_INLINE Wide horizontal_sum(Vec<Wide> v) {
  return fold<Wide, lanes<Wide> / 2>(v, [](auto a, auto b) { return a + b; })[0];
}
template <class Wide>
ESCALERA_INLINE Wide horizontal_max(Vec<Wide> v) {
  return fold<Wide, lanes<Wide> / 2>(v, [](auto a, auto b) { return larger<Wide>(a, b); })[0];
}

// ---- functions ----------------------------------------------------------------------------------------------------------

/// exp(x), relative error about 1e-7 in float. With n the integer nearest to x / ln 2, exp(x) = 2^n exp(x - n ln 2), and the
/// second factor is Taylor's polynomial: its argument lies within +-0.35, so that the first term left out is below 6e-9.
/// Results below the smallest normal number are 0; x above 88.37 gives infinity; NaN stays NaN.
ESCALERA_INLINE Vec<float> exp_polynomial(Vec<float> x) {
  const auto lowest = splat(-87.33f), highest = splat(88.37f);
  const Vec<float> inside = x < lowest ? lowest : x > highest ? highest : x;  // false for NaN, which passes
  // Adding 1.5 * 2^23 leaves no bits for a fraction: the sum is rounded to an integer, which sits in its lowest bits.
  const float rounder = 12582912.0f;
  const Vec<float> shifted = inside * 1.44269504f + rounder;
  const Vec<float> n = shifted - rounder;
  // ln 2 in two parts, of which the first has few bits, so that n times it is exact.
  const Vec<float> f = (inside - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec<float> p = f * (1.0f / 5040) + (1.0f / 720);
  p = p * f + (1.0f / 120);
  p = p * f + (1.0f / 24);
  p = p * f + (1.0f / 6);
  p = p * f + 0.5f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  using I = Vec<std::int32_t>;
  const I exponent = bits_as<I>(shifted) - bits_as<I>(splat(rounder)) + 127;
  const Vec<float> result = p * bits_as<Vec<float>>(exponent << 23);
  const auto zero = splat(0.0f), infinity = splat(__builtin_inff());
  return x < lowest ? zero : x > highest ? infinity : result;
}

template <class Wide>
ESCALERA_INLINE Vec<Wide> exp(Vec<Wide> x) {
  if constexpr (std::is_same_v<Wide, float>) {
    return exp_polynomial(x);
  } else {
    for (int i = 0; i < lanes<Wide>; i++) x[i] = __builtin_exp(x[i]);
    return x;
  }
}

template <class Wide>
ESCALERA_INLINE Vec<Wide> sqrt(Vec<Wide> x) {
#if defined(__x86_64__) && ESCALERA_VECTOR_BYTES == 64
  if constexpr (std::is_same_v<Wide, float>) return bits_as<Vec<Wide>>(_mm512_sqrt_ps(bits_as<__m512>(x)));
  if constexpr (std::is_same_v<Wide, double>) return bits_as<Vec<Wide>>(_mm512_sqrt_pd(bits_as<__m512d>(x)));
#elif defined(__AVX__)
  if constexpr (std::is_same_v<Wide, float>) return bits_as<Vec<Wide>>(_mm256_sqrt_ps(bits_as<__m256>(x)));
  if constexpr (std::is_same_v<Wide, double>) return bits_as<Vec<Wide>>(_mm256_sqrt_pd(bits_as<__m256d>(x)));
#else
  for (int i = 0; i < lanes<Wide>; i++) x[i] = static_cast<Wide>(__builtin_sqrt(x[i]));
  return x;
#endif
}

/// The same functions of one number, computed as a vector of it, so that both agree bit by bit.
template <class Wide>
ESCALERA_INLINE Wide exp_of_one(Wide x) {
  return exp<Wide>(splat(x))[0];
}

}  // namespace
}  // namespace escalera::cpu
