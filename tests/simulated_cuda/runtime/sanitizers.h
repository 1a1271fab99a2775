// What AddressSanitizer and ThreadSanitizer have to be told about fibers and about memory that the runtime touches. Without
// a sanitizer all of it is empty.
//
// The runtime is compiled with -fsanitize=address like everything else, but never with -fsanitize=thread: its own bookkeeping
// would drown the kernels. Instead it is compiled with -DSIMULATED_CUDA_THREAD_SANITIZER and says here what orders what.
// defines: on_address_sanitizer(), on_thread_sanitizer(), tsan_acquire(), tsan_release(), tsan_read(), tsan_write()
#pragma once

#include <cstddef>

#include <simulated_cuda/sanitizer_choice.h>

#ifdef SIMULATED_CUDA_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define ON_ADDRESS_SANITIZER(...) __VA_ARGS__
#else
#define ON_ADDRESS_SANITIZER(...)
#endif

#ifdef SIMULATED_CUDA_THREAD_SANITIZER
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
}
#define ON_THREAD_SANITIZER(...) __VA_ARGS__
#else
#define ON_THREAD_SANITIZER(...)
#endif

namespace simulated_cuda {

/// Everything that was released at `address` happened before what follows.
inline void tsan_acquire([[maybe_unused]] const void* address) {
  ON_THREAD_SANITIZER(__tsan_acquire(const_cast<void*>(address));)
}
/// What came before happened before whatever acquires `address`.
inline void tsan_release([[maybe_unused]] const void* address) {
  ON_THREAD_SANITIZER(__tsan_release(const_cast<void*>(address));)
}
/// The running thread reads or writes this memory.
/// @{
inline void tsan_read([[maybe_unused]] const void* address, [[maybe_unused]] std::size_t bytes) {
  ON_THREAD_SANITIZER(__tsan_read_range(const_cast<void*>(address), bytes);)
}
inline void tsan_write([[maybe_unused]] void* address, [[maybe_unused]] std::size_t bytes) {
  ON_THREAD_SANITIZER(__tsan_write_range(address, bytes);)
}
/// @}

}  // namespace simulated_cuda
