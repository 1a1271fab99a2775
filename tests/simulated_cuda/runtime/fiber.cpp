#include "tests/simulated_cuda/runtime/fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>

#include <simulated_cuda/diagnose.h>

#include "tests/simulated_cuda/runtime/sanitizers.h"

#if !defined(__x86_64__) || defined(SIMULATED_CUDA_PORTABLE_FIBERS)
#include <ucontext.h>
#endif

namespace simulated_cuda {
namespace {

// Instrumented frames are several times larger.
#if defined(SIMULATED_CUDA_ADDRESS_SANITIZER) || defined(SIMULATED_CUDA_THREAD_SANITIZER)
constexpr std::size_t stack_bytes = 512 << 10;
#else
constexpr std::size_t stack_bytes = 256 << 10;
#endif
constexpr std::size_t guard_bytes = 4096;

}  // namespace

#if defined(__x86_64__) && !defined(SIMULATED_CUDA_PORTABLE_FIBERS)

// Saves what a function has to leave unchanged, changes the stack, and restores what was saved there.
extern "C" void simulated_cuda_switch_stack(void** save, void* to);
asm(R"(.text
.globl simulated_cuda_switch_stack
.hidden simulated_cuda_switch_stack
.type simulated_cuda_switch_stack,@function
simulated_cuda_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simulated_cuda_switch_stack, .-simulated_cuda_switch_stack
)");

namespace {

void* prepare(char* stack, std::size_t bytes, void (*entry)()) {
  // The fibers' frames lie at different offsets, or all would fall into the same few lines of the cache.
  static thread_local std::size_t fibers = 0;
  const std::size_t offset = fibers++ * 320 % 8192 / 16 * 16;
  void** top = reinterpret_cast<void**>(stack + bytes - offset);
  *--top = nullptr;  // where entry would return to; and the alignment that a called function expects
  *--top = reinterpret_cast<void*>(entry);
  for (int saved_register = 0; saved_register < 6; ++saved_register) *--top = nullptr;
  return top;
}

void switch_context(void** save, void* to) {
  simulated_cuda_switch_stack(save, to);
}
void* own_context() {
  return nullptr;
}
void forget_context(void*) {}

}  // namespace

#else

namespace {

void* prepare(char* stack, std::size_t bytes, void (*entry)()) {
  auto* context = new ucontext_t;
  ::getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = bytes;
  context->uc_link = nullptr;
  ::makecontext(context, entry, 0);
  return context;
}

void switch_context(void** save, void* to) {
  ::swapcontext(static_cast<ucontext_t*>(*save), static_cast<ucontext_t*>(to));
}
void* own_context() {
  return new ucontext_t;
}
void forget_context(void* context) {
  delete static_cast<ucontext_t*>(context);
}

}  // namespace

#endif

Fiber::Fiber() : context_(own_context()) {
  ON_ADDRESS_SANITIZER({
    pthread_attr_t attributes;
    void* lowest = nullptr;
    ::pthread_getattr_np(::pthread_self(), &attributes);
    ::pthread_attr_getstack(&attributes, &lowest, &stack_bytes_);
    ::pthread_attr_destroy(&attributes);
    stack_ = static_cast<char*>(lowest);
  })
  ON_THREAD_SANITIZER(thread_sanitizer_fiber_ = __tsan_get_current_fiber();)
}

Fiber::Fiber(void (*entry)()) : stack_bytes_(stack_bytes) {
  void* mapping =
      ::mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) fail("no memory for the stack of a CUDA thread");
  ::mprotect(mapping, guard_bytes, PROT_NONE);  // an overflow faults instead of spoiling the neighbour
  mapping_ = static_cast<char*>(mapping);
  stack_ = mapping_ + guard_bytes;
  ON_ADDRESS_SANITIZER(ASAN_UNPOISON_MEMORY_REGION(stack_, stack_bytes);)  // another stack may have been here
  context_ = prepare(stack_, stack_bytes, entry);
  ON_THREAD_SANITIZER(thread_sanitizer_fiber_ = __tsan_create_fiber(0);)
}

Fiber::~Fiber() {
  ON_THREAD_SANITIZER(if (mapping_) __tsan_destroy_fiber(thread_sanitizer_fiber_);)
  if (mapping_) ::munmap(mapping_, guard_bytes + stack_bytes_);
  forget_context(context_);
}

void Fiber::switch_to(Fiber& from, Fiber& to) {
  if (&from == &to) return;
  ON_ADDRESS_SANITIZER(__sanitizer_start_switch_fiber(&from.address_sanitizer_stack_, to.stack_, to.stack_bytes_);)
  constexpr unsigned without_order = 1;  // a switch is no synchronisation: that is what barriers are for
  ON_THREAD_SANITIZER(__tsan_switch_to_fiber(to.thread_sanitizer_fiber_, without_order);)
  static_cast<void>(without_order);
  switch_context(&from.context_, to.context_);
  ON_ADDRESS_SANITIZER(__sanitizer_finish_switch_fiber(from.address_sanitizer_stack_, nullptr, nullptr);)
}

void Fiber::entered() {
  ON_ADDRESS_SANITIZER(__sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);)
}

}  // namespace simulated_cuda
