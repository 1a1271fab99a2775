// The one place where results of CUDA calls are looked at.
// defines: CUDA_CHECK, throw_cuda_error()
#pragma once

#include <cuda_runtime.h>

namespace escalera::cuda {

/// Throws Error: the expression, file and line, and what the runtime says about `code`, on this host and device. Kernel files
/// include this header, so it stands without fmt.
[[noreturn]] void throw_cuda_error(cudaError_t code, const char* expression, const char* file, int line);

}  // namespace escalera::cuda

/// Evaluates `expression` once and throws Error unless it is cudaSuccess.
#define CUDA_CHECK(expression)                                                                          \
  do {                                                                                                  \
    if (const cudaError_t code_of_call = (expression); code_of_call != cudaSuccess)                     \
      ::escalera::cuda::throw_cuda_error(code_of_call, #expression, __FILE__, __LINE__);                \
  } while (false)
