// The counters behind simulated_cuda_counters().
// defines: Counters, counters()
#pragma once

#include <atomic>

namespace simulated_cuda {

struct Counters {
  std::atomic<unsigned long> kernel_launches, allocations, tensor_core_products, matrix_loads, matrix_load_wavefronts,
      shared_copies, shared_copy_bytes, shared_copy_wavefronts, shared_copy_wavefronts_ideal, matrix_products, nccl_calls;
};

Counters& counters();

inline void count(std::atomic<unsigned long>& counter, unsigned long more = 1) {
  counter.fetch_add(more, std::memory_order_relaxed);
}

}  // namespace simulated_cuda
