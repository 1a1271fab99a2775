// Elements as the kernels want them.
// defines: RawType, raw()
#pragma once

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

}  // namespace escalera::cpu
