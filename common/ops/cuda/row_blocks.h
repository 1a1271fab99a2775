// How kernels with one block per row share a row among the threads.
// defines: packs_in_flight, row_threads(), fits_in_registers(), for_kept_packs(), for_all_packs(), for_strips()
#pragma once

#include "common/ops/cuda/vector.h"

namespace escalera::cuda {

/// Packs that a thread asks for before it uses the first. With four times 16 bytes per thread in flight, few threads are
/// enough to keep the memory busy.
inline constexpr int packs_in_flight = 4;

/// Threads for a row of `columns` in packs of `width`: whole warps, a power of two, at most `most`, so that each thread gets
/// up to `packs` packs. Below 128 threads, half as many are enough: the more warps share the arithmetic of a row, the
/// sooner its sum is there.
inline unsigned row_threads(int columns, int width, unsigned most, int packs = packs_in_flight) {
  unsigned threads = 32;
  while (threads < most && static_cast<long long>(threads) * width * (threads < 128 ? packs / 2 : packs) < columns) threads *= 2;
  return threads;
}

/// Whether `most` threads can keep a whole row in registers, `packs` packs each.
inline bool fits_in_registers(int columns, int width, unsigned most, int packs = packs_in_flight) {
  return columns <= static_cast<long long>(most) * width * packs;
}

/// Calls body(column, slot) for this thread's packs among those that begin in [begin, end): slot 0 to PACKS - 1 of its
/// registers. The loop has a constant length, so that registers can be numbered.
template <int WIDTH, int PACKS = packs_in_flight, class Body>
__device__ __forceinline__ void for_kept_packs(int begin, int end, Body&& body) {
#pragma unroll
  for (int slot = 0; slot < PACKS; slot++) {
    const int column = begin + (slot * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * WIDTH;
    if (column < end) body(column, slot);
  }
}

/// The same for a row that fits in registers as a whole.
template <int WIDTH, int PACKS = packs_in_flight, class Body>
__device__ __forceinline__ void for_kept_packs(int columns, Body&& body) {
  for_kept_packs<WIDTH, PACKS>(0, columns, body);
}

/// Calls body(column) for this thread's packs of a row of any length.
template <int WIDTH, class Body>
__device__ __forceinline__ void for_all_packs(int columns, Body&& body) {
  const int stride = static_cast<int>(blockDim.x) * WIDTH;
  for (int column = static_cast<int>(threadIdx.x) * WIDTH; column < columns; column += stride) body(column);
}

/// Goes through a row of any length and calls body(column, pack) for this thread's packs, several of which are loaded
/// before the first is used.
template <int WIDTH, class T, class Body>
__device__ __forceinline__ void for_strips(const T* row, int columns, Body&& body) {
  const int strip = static_cast<int>(blockDim.x) * WIDTH * packs_in_flight;
  for (int begin = 0; begin < columns; begin += strip) {
    Pack<T, WIDTH> packs[packs_in_flight];
    for_kept_packs<WIDTH>(begin, columns, [&](int column, int slot) { packs[slot] = load_pack<WIDTH>(row + column); });
    for_kept_packs<WIDTH>(begin, columns, [&](int column, int slot) { body(column, packs[slot]); });
  }
}

}  // namespace escalera::cuda
