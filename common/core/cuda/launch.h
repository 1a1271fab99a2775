// How kernels are started. The <<<...>>> syntax is nvcc's alone; through cudaLaunchKernelEx the same sources also compile for
// simulated CUDA (tests/simulated_cuda), where they run on the CPU.
// defines: launch(), blocks_for()
#pragma once

#include <cstddef>
#include <utility>

#include "common/core/cuda/cuda_check.h"

namespace escalera::cuda {

/// Starts `kernel` in order on `stream` with `shared_bytes` of dynamic shared memory per block. An empty grid starts nothing.
/// Above 48 KB the kernel must have been given allow_shared_memory() first.
template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared_bytes, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

/// Lets `kernel` use up to `bytes` of dynamic shared memory. Cheap; call it before a launch that needs more than 48 KB.
template <class... Parameters>
void allow_shared_memory(void (*kernel)(Parameters...), std::size_t bytes) {
  CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
}

/// Blocks of `per_block` items that cover `items`.
inline unsigned blocks_for(long long items, long long per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace escalera::cuda
