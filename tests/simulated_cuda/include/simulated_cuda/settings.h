// What the environment says about a simulation; tests may also change it while nothing is queued.
// defines: Settings, settings()
#pragma once

#include <cstddef>
#include <cstdint>

namespace simulated_cuda {

enum class ThreadOrder {
  forward,  ///< low thread, warp and block numbers run first, each as far as it can
  reverse,  ///< high numbers first
  shuffle,  ///< blocks, warps and lanes in random order; a warp is likely to run on for a while
};

struct Settings {
  ThreadOrder order;          ///< SIMULATED_CUDA_ORDER=forward|reverse|shuffle
  std::uint64_t seed;         ///< SIMULATED_CUDA_SEED, for shuffle
  bool lazy_streams;          ///< SIMULATED_CUDA_STREAMS=eager|lazy; lazy: work runs only once something waits for it
  bool early_copies;          ///< SIMULATED_CUDA_COPIES=late|early: when cp.async moves its bytes
  int devices;                ///< SIMULATED_CUDA_DEVICES; 8
  std::size_t device_memory;  ///< SIMULATED_CUDA_MEMORY_MB, per device; 16 GB
  int nccl_error_rank, nccl_error_call;  ///< SIMULATED_CUDA_NCCL_ERROR=RANK:CALL: that rank's CALL-th operation on a
                                         ///< communicator never ends, and ncclCommGetAsyncError() says ncclRemoteError
  double
      nccl_timeout_seconds;  ///< SIMULATED_CUDA_NCCL_TIMEOUT_S: a call that waits so long, while nothing moves, is a fault
};

/// Read from the environment at the first call.
Settings& settings();

}  // namespace simulated_cuda
