#include "tests/simulated_cuda/runtime/counters.h"

#include <simulated_cuda/counters.h>

namespace simulated_cuda {

Counters& counters() {
  static Counters instance{};
  return instance;
}

}  // namespace simulated_cuda

SimulatedCudaCounters simulated_cuda_counters() {
  const simulated_cuda::Counters& now = simulated_cuda::counters();
  return {now.kernel_launches,
          now.allocations,
          now.tensor_core_products,
          now.matrix_loads,
          now.matrix_load_wavefronts,
          now.shared_copies,
          now.shared_copy_bytes,
          now.shared_copy_wavefronts,
          now.shared_copy_wavefronts_ideal,
          now.matrix_products,
          now.nccl_calls};
}
