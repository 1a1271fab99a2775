// Warp operations: shuffles, votes, reductions. Every lane of the mask has to come, from the same place in the source.
// defines: __shfl_*sync, __ballot_sync, __any_sync, __all_sync, __reduce_*_sync, __syncwarp
#pragma once

#include <simulated_cuda/execution.h>

namespace simulated_cuda {

template <class T>
struct ShuffleValue {
  T value;
  unsigned source;  // the lane to read from
};

template <class T>
void run_shuffle(void** values, unsigned lanes) {
  T result[32];
  for (unsigned i = 0; i < 32; ++i) {
    if (!(lanes >> i & 1)) continue;
    const unsigned source = static_cast<ShuffleValue<T>*>(values[i])->source;
    if (!(lanes >> source & 1)) {
      fail("lane %u reads lane %u in a shuffle, which takes no part (lanes here: %08x)", i, source, lanes);
    }
    result[i] = static_cast<ShuffleValue<T>*>(values[source])->value;
  }
  for (unsigned i = 0; i < 32; ++i) {
    if (lanes >> i & 1) static_cast<ShuffleValue<T>*>(values[i])->value = result[i];
  }
}

template <class T>
T shuffle(unsigned mask, T value, unsigned source, const WarpOperation& operation, std::source_location where) {
  ShuffleValue<T> own{value, source};
  warp_collective(mask, &own, operation, where);
  return own.value;
}

struct IntegerValue {
  unsigned value;
  unsigned result;
};

/// `Combine` folds the values of all lanes, in the order of the lanes; every lane gets the result.
template <class Combine>
unsigned fold(unsigned mask, unsigned value, const char* name, Combine, std::source_location where) {
  IntegerValue own{value, 0};
  const WarpOperation operation{name, [](void** values, unsigned lanes) {
                                  bool first = true;
                                  unsigned result = 0;
                                  for (unsigned i = 0; i < 32; ++i) {
                                    if (!(lanes >> i & 1)) continue;
                                    const unsigned next = static_cast<IntegerValue*>(values[i])->value;
                                    result = first ? next : Combine{}(result, next);
                                    first = false;
                                  }
                                  for (unsigned i = 0; i < 32; ++i) {
                                    if (lanes >> i & 1) static_cast<IntegerValue*>(values[i])->result = result;
                                  }
                                }};
  warp_collective(mask, &own, operation, where);
  return own.result;
}

}  // namespace simulated_cuda

inline void __syncwarp(unsigned mask = simulated_cuda::all_lanes,
                       std::source_location where = std::source_location::current()) {
  static constexpr simulated_cuda::WarpOperation operation{"__syncwarp", [](void**, unsigned) {}, false};
  simulated_cuda::warp_collective(mask, nullptr, operation, where);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              std::source_location where = std::source_location::current()) {
  static constexpr simulated_cuda::WarpOperation operation{"__shfl_sync", simulated_cuda::run_shuffle<T>};
  const unsigned lane = simulated_cuda::lane(), inside = static_cast<unsigned>(width) - 1;
  return simulated_cuda::shuffle(mask, value, (lane & ~inside) | (static_cast<unsigned>(source) & inside), operation, where);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  std::source_location where = std::source_location::current()) {
  static constexpr simulated_cuda::WarpOperation operation{"__shfl_xor_sync", simulated_cuda::run_shuffle<T>};
  const unsigned lane = simulated_cuda::lane(), inside = static_cast<unsigned>(width) - 1;
  const unsigned source = lane ^ static_cast<unsigned>(lane_mask);
  return simulated_cuda::shuffle(mask, value, source > (lane | inside) ? lane : source, operation, where);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   std::source_location where = std::source_location::current()) {
  static constexpr simulated_cuda::WarpOperation operation{"__shfl_down_sync", simulated_cuda::run_shuffle<T>};
  const unsigned lane = simulated_cuda::lane(), inside = static_cast<unsigned>(width) - 1;
  return simulated_cuda::shuffle(mask, value, (lane & inside) + delta > inside ? lane : lane + delta, operation, where);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 std::source_location where = std::source_location::current()) {
  static constexpr simulated_cuda::WarpOperation operation{"__shfl_up_sync", simulated_cuda::run_shuffle<T>};
  const unsigned lane = simulated_cuda::lane(), inside = static_cast<unsigned>(width) - 1;
  return simulated_cuda::shuffle(mask, value, (lane & inside) < delta ? lane : lane - delta, operation, where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, std::source_location where = std::source_location::current()) {
  return simulated_cuda::fold(
      mask, predicate ? 1u << simulated_cuda::lane() : 0u, "__ballot_sync", [](unsigned a, unsigned b) { return a | b; },
      where);
}
inline int __any_sync(unsigned mask, int predicate, std::source_location where = std::source_location::current()) {
  return static_cast<int>(simulated_cuda::fold(
      mask, predicate ? 1u : 0u, "__any_sync", [](unsigned a, unsigned b) { return a | b; }, where));
}
inline int __all_sync(unsigned mask, int predicate, std::source_location where = std::source_location::current()) {
  return static_cast<int>(simulated_cuda::fold(
      mask, predicate ? 1u : 0u, "__all_sync", [](unsigned a, unsigned b) { return a & b; }, where));
}

// The __reduce_*_sync family of sm_80.
#define SIMULATED_CUDA_REDUCE(NAME, TYPE, EXPRESSION)                                                         \
  inline TYPE NAME(unsigned mask, TYPE value, std::source_location where = std::source_location::current()) { \
    return static_cast<TYPE>(simulated_cuda::fold(                                                            \
        mask, static_cast<unsigned>(value), #NAME,                                                            \
        [](unsigned x, unsigned y) {                                                                          \
          [[maybe_unused]] const TYPE a = static_cast<TYPE>(x), b = static_cast<TYPE>(y);                     \
          return static_cast<unsigned>(EXPRESSION);                                                           \
        },                                                                                                    \
        where));                                                                                              \
  }
SIMULATED_CUDA_REDUCE(__reduce_add_sync, unsigned, x + y)
SIMULATED_CUDA_REDUCE(__reduce_add_sync, int, x + y)
SIMULATED_CUDA_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
SIMULATED_CUDA_REDUCE(__reduce_min_sync, int, a < b ? a : b)
SIMULATED_CUDA_REDUCE(__reduce_max_sync, unsigned, a < b ? b : a)
SIMULATED_CUDA_REDUCE(__reduce_max_sync, int, a < b ? b : a)
SIMULATED_CUDA_REDUCE(__reduce_and_sync, unsigned, x& y)
SIMULATED_CUDA_REDUCE(__reduce_or_sync, unsigned, x | y)
SIMULATED_CUDA_REDUCE(__reduce_xor_sync, unsigned, x ^ y)
#undef SIMULATED_CUDA_REDUCE
