#include <cuda_runtime.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "tests/simulated_cuda/runtime/block_executor.h"
#include "tests/simulated_cuda/runtime/kernel_symbols.h"

namespace simulated_cuda {

void fail(const char* format, ...) {
  char message[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  std::fflush(stdout);
  const BlockExecutor* executor = BlockExecutor::running();
  if (executor && executor->inside_kernel()) {
    std::fprintf(stderr, "simulated CUDA: %s, block (%u,%u,%u), thread (%u,%u,%u): %s\n",
                 kernel_name(executor->call().kernel).c_str(), blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y,
                 threadIdx.z, message);
  } else {
    std::fprintf(stderr, "simulated CUDA: %s\n", message);
  }
  std::fflush(stderr);
  std::abort();
}

}  // namespace simulated_cuda
