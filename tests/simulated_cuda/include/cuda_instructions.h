// The twin of common/core/cuda/device/cuda_instructions.h for simulated CUDA: the same names, found by include path.
// defines: DYNAMIC_SHARED, multiply_accumulate(), load_matrices(), load_matrices_transposed(), copy_async(), commit_copies(),
//          wait_copies(), exp2_fast()
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <source_location>

#include <simulated_cuda/async_copy.h>
#include <simulated_cuda/tensor_core.h>

/// Declares `unsigned char* name`, the dynamic shared memory of the block, aligned to 128 bytes.
#define DYNAMIC_SHARED(name) unsigned char* const name = ::simulated_cuda::current_thread.dynamic_shared

namespace escalera::cuda {

__device__ __forceinline__ void multiply_accumulate(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                                    std::source_location where = std::source_location::current()) {
  simulated_cuda::tensor_core_product(d, a, b0, b1, where);
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const __nv_bfloat16* row,
                                              std::source_location where = std::source_location::current()) {
  simulated_cuda::load_matrix_fragments(r, row, false, where);
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const __nv_bfloat16* row,
                                                         std::source_location where = std::source_location::current()) {
  simulated_cuda::load_matrix_fragments(r, row, true, where);
}

template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool inside) {
  static_assert(BYTES == 4 || BYTES == 16);
  simulated_cuda::copy_async(shared, global, BYTES, inside ? BYTES : 0);
}

__device__ __forceinline__ void commit_copies() {
  simulated_cuda::commit_copies();
}

template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  simulated_cuda::wait_copies(PENDING);
}

__device__ __forceinline__ float exp2_fast(float x) {
  return std::exp2(x);
}

}  // namespace escalera::cuda
