// How kernels see elements: a few neighbours at a time, in one access of up to 16 bytes, computed with in float32 and
// rounded once.
// defines: bf16, Pack, Floats, load(), store(), aligned(), choose_width(), for_pack(), exponential(), sigmoid()
#pragma once

#include <cuda_bf16.h>
#include <cuda_instructions.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace escalera::cuda {

using bf16 = __nv_bfloat16;

/// Bytes that a thread moves at once: a warp then asks for 512 contiguous bytes, four full cache lines.
inline constexpr int access_bytes = 16;

/// Neighbouring elements as they lie in memory.
template <class T, int WIDTH>
struct alignas(WIDTH * sizeof(T) < access_bytes ? WIDTH * sizeof(T) : access_bytes) Pack {
  T values[WIDTH];
};

/// The same elements in the type that all arithmetic happens in.
template <int WIDTH>
struct Floats {
  float values[WIDTH];
  __device__ __forceinline__ float& operator[](int i) { return values[i]; }
  __device__ __forceinline__ float operator[](int i) const { return values[i]; }
};

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(bf16 value) { return __bfloat162float(value); }

/// Rounds to nearest, ties to even.
template <class T>
__device__ __forceinline__ T narrow(float value) {
  if constexpr (std::is_same_v<T, bf16>) {
    return __float2bfloat16_rn(value);
  } else {
    return value;
  }
}

template <class T, int WIDTH>
__device__ __forceinline__ Floats<WIDTH> widen(const Pack<T, WIDTH>& pack) {
  Floats<WIDTH> wide;
#pragma unroll
  for (int i = 0; i < WIDTH; i++) wide[i] = widen(pack.values[i]);
  return wide;
}

template <class T, int WIDTH>
__device__ __forceinline__ Pack<T, WIDTH> narrow(const Floats<WIDTH>& wide) {
  Pack<T, WIDTH> pack;
#pragma unroll
  for (int i = 0; i < WIDTH; i++) pack.values[i] = narrow<T>(wide[i]);
  return pack;
}

/// WIDTH elements from `source` on, which is aligned to all of them (or to 16 bytes, if they are more).
template <int WIDTH, class T>
__device__ __forceinline__ Pack<T, WIDTH> load_pack(const T* source) {
  return *reinterpret_cast<const Pack<T, WIDTH>*>(source);
}

template <int WIDTH, class T>
__device__ __forceinline__ void store_pack(T* destination, const Pack<T, WIDTH>& pack) {
  *reinterpret_cast<Pack<T, WIDTH>*>(destination) = pack;
}

template <int WIDTH, class T>
__device__ __forceinline__ Floats<WIDTH> load(const T* source) {
  return widen(load_pack<WIDTH>(source));
}

template <int WIDTH, class T>
__device__ __forceinline__ void store(T* destination, const Floats<WIDTH>& values) {
  store_pack<WIDTH>(destination, narrow<T>(values));
}

/// exp(x). For bfloat16 results in two instructions: a relative error of 2^-24 |x|, where rounding the result costs 2^-9.
template <class T>
__device__ __forceinline__ float exponential(float x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return exp2_fast(x * 1.4426950408889634f);
  } else {
    return expf(x);
  }
}

template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + exponential<T>(-x));
}

/// Whether packs of `bytes` can be read from and written to `pointer`. Null is aligned.
inline bool aligned(const void* pointer, std::size_t bytes = access_bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

/// Calls body(width), width being a compile-time constant: WIDTH where accesses may be wide, else 1. So each kernel exists
/// twice: for aligned operands, and for odd widths and slices that begin anywhere.
template <int WIDTH, class Body>
void choose_width(bool wide, Body&& body) {
  if (wide) {
    body(std::integral_constant<int, WIDTH>());
  } else {
    body(std::integral_constant<int, 1>());
  }
}

/// For kernels over flat spans, with one pack per thread: calls body(begin, width) for this thread's pack, or for the
/// single elements that are left at the end of the span. `width` is a compile-time constant.
template <int WIDTH, class Body>
__device__ __forceinline__ void for_pack(long long count, Body&& body) {
  long long i = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * WIDTH;
  if (i + WIDTH <= count) {
    body(i, std::integral_constant<int, WIDTH>());
  } else {
#pragma unroll 1
    for (; i < count; i++) body(i, std::integral_constant<int, 1>());
  }
}

}  // namespace escalera::cuda
