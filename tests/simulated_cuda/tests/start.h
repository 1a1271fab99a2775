// Kernel launches for the tests' kernels, without the project's error handling.
// defines: start()
#pragma once

#include <cuda_runtime.h>

#include <utility>

template <class... Parameters, class... Arguments>
cudaError_t start(cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared_bytes, void (*kernel)(Parameters...),
                  Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}
