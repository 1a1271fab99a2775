// Elements as kernels want them, and the one switch from a run-time type to theirs.
// defines: DeviceType, raw(), dispatch_device(), to_int()
#pragma once

#include <cuda_bf16.h>

#include <limits>
#include <string_view>
#include <type_traits>

#include "common/core/tensor.h"

namespace escalera::cuda {

/// The type in which kernels see elements of type T.
template <class T>
using DeviceType = std::conditional_t<std::is_same_v<T, bfloat16>, __nv_bfloat16, T>;

/// The elements of a tensor of type T, in device memory; null for an empty one.
template <class T>
DeviceType<T>* raw(const Tensor& tensor) {
  return reinterpret_cast<DeviceType<T>*>(tensor.as<T>());
}

/// Calls `body.template operator()<T>()` with the C++ type of `dtype`. Throws Error for float64, naming the operation.
template <class Body>
decltype(auto) dispatch_device(DType dtype, std::string_view operation, Body&& body) {
  switch (dtype) {
    case DType::float32: return body.template operator()<float>();
    case DType::bfloat16: return body.template operator()<bfloat16>();
    case DType::float64: break;
  }
  fail("{}: the CUDA backend computes in float32 and bfloat16, not in {}", operation, to_string(dtype));
}

/// A number of rows, columns or heads as kernels count them.
inline int to_int(Index count) {
  require(count <= std::numeric_limits<int>::max(), "the CUDA backend counts rows and columns in 32 bits; {} are too many",
          count);
  return static_cast<int>(count);
}

}  // namespace escalera::cuda
