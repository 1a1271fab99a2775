// What a simulation has counted since the process started, so that tests can say, for example, that a step allocates nothing.
// defines: SimulatedCudaCounters, simulated_cuda_counters()
#pragma once

extern "C" {

struct SimulatedCudaCounters {
  unsigned long kernel_launches;
  unsigned long allocations;                   // cudaMalloc
  unsigned long tensor_core_products;          // mma.sync, per warp
  unsigned long matrix_loads;                  // ldmatrix.x4, per warp
  unsigned long matrix_load_wavefronts;        // 4 per load without bank conflicts
  unsigned long shared_copies;                 // cp.async, per thread
  unsigned long shared_copy_bytes;             // without the zeros that fill up
  unsigned long shared_copy_wavefronts;        // of the 16-byte copies
  unsigned long shared_copy_wavefronts_ideal;  // what they would be without bank conflicts
  unsigned long matrix_products;               // cublasLtMatmul
  unsigned long nccl_calls;
};

/// The counts up to now, of all host threads.
struct SimulatedCudaCounters simulated_cuda_counters(void);
}
