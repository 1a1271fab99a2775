// The execution model as kernels see it: who am I, shared memory, barriers.
// defines: threadIdx, blockIdx, blockDim, gridDim, warpSize, __shared__, __launch_bounds__, __syncthreads() and its kin,
//          the primitives that warp.h and tensor_core.h build on
#pragma once

#include <cstddef>
#include <source_location>

#include <simulated_cuda/diagnose.h>
#include <simulated_cuda/sanitizer_choice.h>

#undef __launch_bounds__
#define __launch_bounds__(...)

// A block stays on one host thread, so its shared memory is that thread's. AddressSanitizer guards plain static variables
// only; there blocks of all host threads take turns. The tag becomes part of the symbol's name, by which the runtime finds
// these variables and fills them before each block.
#undef __shared__
#ifdef SIMULATED_CUDA_ADDRESS_SANITIZER
#define __shared__ static __attribute__((abi_tag("simulated_shared")))
#else
#define __shared__ static thread_local __attribute__((abi_tag("simulated_shared")))
#endif

// Few bytes, and read in every kernel: worth a place that is reached without a call, even from a library opened late.
#define SIMULATED_CUDA_THREAD_LOCAL thread_local constinit __attribute__((tls_model("initial-exec")))

// Variables, not macros: cudaLaunchConfig_t has members of these names.
extern SIMULATED_CUDA_THREAD_LOCAL uint3 threadIdx, blockIdx;
extern SIMULATED_CUDA_THREAD_LOCAL dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace simulated_cuda {

inline constexpr unsigned all_lanes = 0xffffffffu;

/// The running CUDA thread's number in its block, and the dynamic shared memory of that block.
struct CurrentThread {
  unsigned number = 0;
  unsigned char* dynamic_shared = nullptr;
};
extern SIMULATED_CUDA_THREAD_LOCAL CurrentThread current_thread;

inline unsigned lane() {
  return current_thread.number & 31u;
}

/// What a barrier does with the values of all threads of the block; the values of exited threads are null.
using BlockOperation = void (*)(void** values, unsigned threads);
/// Waits until all threads of the block that have not exited are here. `where` tells one barrier from another.
void block_barrier(std::source_location where, BlockOperation operation = nullptr, void* value = nullptr);

/// An operation of a warp. `run` is called once, by the last lane to come, with the values of all lanes in `lanes`.
struct WarpOperation {
  const char* name;
  void (*run)(void** values, unsigned lanes);
  bool one_site = true;  ///< all lanes have to come from the same place in the source
  bool needs_all_lanes = false;
};
/// Waits until all lanes of `mask` that have not exited are here with the same operation.
void warp_collective(unsigned mask, void* value, const WarpOperation& operation, std::source_location where);

}  // namespace simulated_cuda

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  simulated_cuda::block_barrier(where);
}

namespace simulated_cuda {

/// Barrier, then `combine` over the predicates of all threads: the number of true ones, and of all.
template <class Combine>
int barrier_vote(int predicate, Combine, std::source_location where) {
  struct Vote {
    bool predicate;
    int result;
  } vote{predicate != 0, 0};
  block_barrier(
      where,
      [](void** values, unsigned threads) {
        int yes = 0, voters = 0;
        for (unsigned i = 0; i < threads; ++i) {
          if (!values[i]) continue;
          ++voters;
          yes += static_cast<Vote*>(values[i])->predicate ? 1 : 0;
        }
        for (unsigned i = 0; i < threads; ++i) {
          if (values[i]) static_cast<Vote*>(values[i])->result = Combine{}(yes, voters);
        }
      },
      &vote);
  return vote.result;
}

}  // namespace simulated_cuda

inline int __syncthreads_count(int predicate, std::source_location where = std::source_location::current()) {
  return simulated_cuda::barrier_vote(
      predicate, [](int yes, int) { return yes; }, where);
}
inline int __syncthreads_or(int predicate, std::source_location where = std::source_location::current()) {
  return simulated_cuda::barrier_vote(
      predicate, [](int yes, int) { return yes > 0 ? 1 : 0; }, where);
}
inline int __syncthreads_and(int predicate, std::source_location where = std::source_location::current()) {
  return simulated_cuda::barrier_vote(
      predicate, [](int yes, int voters) { return yes == voters ? 1 : 0; }, where);
}

// Threads of a block run on one host thread, blocks one after the other: every write is seen by who runs next.
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
