// Which sanitizer this is compiled for.
// defines: SIMULATED_CUDA_ADDRESS_SANITIZER, or SIMULATED_CUDA_THREAD_SANITIZER, or neither
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define SIMULATED_CUDA_ADDRESS_SANITIZER 1
#elif defined(__SANITIZE_THREAD__) && !defined(SIMULATED_CUDA_THREAD_SANITIZER)
#define SIMULATED_CUDA_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMULATED_CUDA_ADDRESS_SANITIZER 1
#elif __has_feature(thread_sanitizer) && !defined(SIMULATED_CUDA_THREAD_SANITIZER)
#define SIMULATED_CUDA_THREAD_SANITIZER 1
#endif
#endif
