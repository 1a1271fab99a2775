// A stack of its own for each CUDA thread that has to wait: switching is a function call that returns elsewhere.
// defines: Fiber
#pragma once

#include <cstddef>

namespace simulated_cuda {

class Fiber {
 public:
  /// The calling host thread's own stack.
  Fiber();
  /// A new stack; the first switch to it calls `entry`, which must not return.
  explicit Fiber(void (*entry)());
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Saves the running fiber as `from` and goes on where `to` was left. Returns when somebody switches back.
  static void switch_to(Fiber& from, Fiber& to);
  /// The first thing that `entry` does.
  static void entered();

 private:
  void* context_ = nullptr;  // the saved stack pointer
  char* mapping_ = nullptr;
  char* stack_ = nullptr;
  std::size_t stack_bytes_ = 0;
  void* address_sanitizer_stack_ = nullptr;
  void* thread_sanitizer_fiber_ = nullptr;
};

}  // namespace simulated_cuda
