// Checks of arguments, and elements as the kernels want them.
// defines: RawType, raw(), check()
#pragma once

#include <string_view>
#include <type_traits>

#include "common/core/tensor.h"
#include "common/ops/cpu/kernels.h"

namespace escalera::cpu {

/// The type in which kernels see elements of type T.
template <class T>
using RawType = std::conditional_t<std::is_same_v<T, bfloat16>, Bits16, T>;

/// The elements of a tensor of type T; null for an empty one.
template <class T>
RawType<T>* raw(const Tensor& tensor) {
  return reinterpret_cast<RawType<T>*>(tensor.as<T>());
}

/// Throws Error unless the tensor has this shape and type. `name` is the operand as ops.h calls it.
inline void check(const Tensor& tensor, Index rows, Index columns, DType dtype, std::string_view name) {
  require(tensor.rows() == rows && tensor.columns() == columns && tensor.dtype() == dtype,
          "{} has the shape [{}, {}] and type {}, but [{}, {}] and {} are wanted", name, tensor.rows(), tensor.columns(),
          to_string(tensor.dtype()), rows, columns, to_string(dtype));
}

/// The same for flat spans, where only the number of elements counts.
inline void check(const Tensor& tensor, Index size, DType dtype, std::string_view name) {
  require(tensor.size() == size && tensor.dtype() == dtype, "{} has {} elements of type {}, but {} of {} are wanted", name,
          tensor.size(), to_string(tensor.dtype()), size, to_string(dtype));
}

}  // namespace escalera::cpu
