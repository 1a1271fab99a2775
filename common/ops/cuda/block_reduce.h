// Sums and maxima over the threads of a warp and of a block. The order of additions is fixed by the numbers of the threads,
// so the same values give the same bits, and every thread gets them.
// defines: warp_reduce(), block_reduce(), block_sum(), block_max()
#pragma once

#include <cuda_runtime.h>

namespace escalera::cuda {

inline constexpr unsigned whole_warp = 0xffffffffu;
/// The most warps that a block can have: slots that a block reduction wants in shared memory.
inline constexpr int most_warps = 32;

struct Sum {
  static constexpr float neutral = 0;
  template <class V>
  __device__ __forceinline__ V operator()(V a, V b) const {
    return a + b;
  }
};

struct Maximum {
  static constexpr float neutral = -__builtin_huge_valf();
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// Over a whole warp: pairs, then pairs of pairs. Both partners of a step combine the same two values, so all lanes agree.
template <class Combine, class V>
__device__ __forceinline__ V warp_reduce(V value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = Combine()(value, __shfl_xor_sync(whole_warp, value, distance));
  }
  return value;
}

/// Over a block of whole warps. `slots` is shared memory for most_warps values; a block that reduces again uses other
/// slots, or puts a barrier between.
template <class Combine, class V>
__device__ __forceinline__ V block_reduce(V value, V* slots) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  value = warp_reduce<Combine>(value);
  if (warps == 1) return value;
  if (lane == 0) slots[warp] = value;
  __syncthreads();
  return warp_reduce<Combine>(lane < warps ? slots[lane] : static_cast<V>(Combine::neutral));
}

template <class V>
__device__ __forceinline__ V block_sum(V value, V* slots) {
  return block_reduce<Sum>(value, slots);
}

__device__ __forceinline__ float block_max(float value, float* slots) { return block_reduce<Maximum>(value, slots); }

}  // namespace escalera::cuda
