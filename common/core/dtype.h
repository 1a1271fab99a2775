// Element types, and the one switch from a run-time type to a compile-time one.
// defines: Index, bfloat16, DType, size_of(), accumulation_dtype(), dispatch()
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/core/error.h"

namespace escalera {

/// Counts and offsets of elements. Signed, so that differences are safe.
using Index = std::int64_t;

/// A bfloat16 number: the upper half of a float32. Arithmetic happens in float; only storage is 16 bits wide.
struct bfloat16 {
  std::uint16_t bits = 0;  ///< sign, 8 bits of exponent, 7 of mantissa

  bfloat16() = default;  ///< zero
  /// Rounds to nearest, ties to even; NaN stays NaN.
  explicit bfloat16(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const bool is_nan = (wide & 0x7fffffffU) > 0x7f800000U;
    bits = is_nan ? static_cast<std::uint16_t>((wide >> 16) | 0x40U)
                  : static_cast<std::uint16_t>((wide + 0x7fffU + ((wide >> 16) & 1U)) >> 16);
  }
  /// Exact.
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// The element types that a tensor may have.
enum class DType { float32, float64, bfloat16 };

/// Bytes per element.
constexpr Index size_of(DType dtype) {
  return dtype == DType::float64 ? 8 : dtype == DType::float32 ? 4 : 2;
}

/// The type in which gradients, master weights, optimizer states, statistics (1/rms, log-sum-exp) and sums are
/// kept beside values of type `dtype`: float32 for bfloat16, otherwise the type itself.
constexpr DType accumulation_dtype(DType dtype) {
  return dtype == DType::bfloat16 ? DType::float32 : dtype;
}

/// "float32", "float64" or "bfloat16", as typed on the command line.
std::string_view to_string(DType dtype);

/// Compile-time face of DType.
template <class T>
struct DTypeOf;
/// float32.
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::float32;  ///< this type at run time
  using Accumulator = float;                      ///< see accumulation_dtype()
};
/// float64.
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::float64;  ///< this type at run time
  using Accumulator = double;                     ///< see accumulation_dtype()
};
/// bfloat16.
template <>
struct DTypeOf<bfloat16> {
  static constexpr DType value = DType::bfloat16;  ///< this type at run time
  using Accumulator = float;                       ///< see accumulation_dtype()
};

/// The C++ type that accumulation_dtype() names.
template <class T>
using Accumulator = typename DTypeOf<T>::Accumulator;

/// Calls `body.template operator()<T>()` with the C++ type of `dtype`.
template <class Body>
decltype(auto) dispatch(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::float32: return body.template operator()<float>();
    case DType::float64: return body.template operator()<double>();
    case DType::bfloat16: return body.template operator()<bfloat16>();
  }
  fail("unknown element type");
}

}  // namespace escalera
