#include "tests/simulated_cuda/runtime/block_executor.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <numeric>
#include <string>

#include <simulated_cuda/async_copy.h>
#include <simulated_cuda/settings.h>

#include "tests/simulated_cuda/runtime/counters.h"
#include "tests/simulated_cuda/runtime/kernel_symbols.h"
#include "tests/simulated_cuda/runtime/sanitizers.h"

SIMULATED_CUDA_THREAD_LOCAL uint3 threadIdx{}, blockIdx{};
SIMULATED_CUDA_THREAD_LOCAL dim3 blockDim{}, gridDim{};

namespace simulated_cuda {

SIMULATED_CUDA_THREAD_LOCAL CurrentThread current_thread{};

namespace {

SIMULATED_CUDA_THREAD_LOCAL BlockExecutor* running_executor = nullptr;

bool same_place(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

std::string place(const std::source_location& where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line());
}

}  // namespace

/// Dynamic shared memory ends at a page that nobody may touch. AddressSanitizer gets a poisoned zone before that, because it
/// explains more than a fault does.
struct BlockExecutor::SharedMemory {
  static constexpr std::size_t most = 256 << 10, guard = 4096;
#ifdef SIMULATED_CUDA_ADDRESS_SANITIZER
  static constexpr std::size_t red_zone = 4096;
#else
  static constexpr std::size_t red_zone = 0;
#endif
  char* mapping;

  SharedMemory()
      : mapping(static_cast<char*>(
            ::mmap(nullptr, most + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (mapping == MAP_FAILED) fail("no memory for the dynamic shared memory of a block");
    ::mprotect(mapping + most, guard, PROT_NONE);
  }
  ~SharedMemory() {
    ON_ADDRESS_SANITIZER(ASAN_UNPOISON_MEMORY_REGION(mapping, most);)
    ::munmap(mapping, most + guard);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// `bytes` at a multiple of 128.
  unsigned char* take(std::size_t bytes) {
    const std::size_t rounded = (bytes + 127) / 128 * 128;
    char* const begin = mapping + most - red_zone - rounded;
    ON_ADDRESS_SANITIZER(ASAN_POISON_MEMORY_REGION(mapping, most); ASAN_UNPOISON_MEMORY_REGION(begin, bytes);)
    return reinterpret_cast<unsigned char*>(begin);
  }
};

BlockExecutor::BlockExecutor()
    : shared_memory_(std::make_unique<SharedMemory>()),
      launcher_(std::make_unique<Fiber>()),
      current_fiber_(launcher_.get()) {
  // CUDA threads are to allocate nothing: ThreadSanitizer would take the allocator's work for theirs.
  fibers_.reserve(most_threads);
  idle_fibers_.reserve(most_threads);
  for (Warp& warp : warp_) warp.open.reserve(32);
}
BlockExecutor::~BlockExecutor() = default;

BlockExecutor& BlockExecutor::of_this_thread() {
  static thread_local std::unique_ptr<BlockExecutor> own;
  if (!own) own = std::make_unique<BlockExecutor>();
  return *own;
}

BlockExecutor* BlockExecutor::running() {
  return running_executor;
}

// ---- Blocks --------------------------------------------------------------------------------------------------------

void BlockExecutor::run(const KernelCall& call, const Grid& grid) {
#ifdef SIMULATED_CUDA_ADDRESS_SANITIZER
  static std::mutex one_block_at_a_time;  // __shared__ variables are the whole process's
  std::lock_guard lock(one_block_at_a_time);
#endif
  call_ = call;
  grid_ = grid;
  threads_ = grid.threads.x * grid.threads.y * grid.threads.z;
  random_ = grid.random * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
  if (random_ == 0) random_ = 1;
  running_executor = this;
  blockDim = grid.threads;
  gridDim = grid.blocks;
  for (unsigned i = 0; i < threads_; ++i) {
    thread_[i].index = {i % grid.threads.x, i / grid.threads.x % grid.threads.y, i / (grid.threads.x * grid.threads.y)};
  }
  symbols_ = &symbols_of(call.kernel);
  static_shared_ = symbols_->shared_begin();
  current_thread.dynamic_shared = shared_memory_->take(grid.dynamic_shared_bytes);
  ON_THREAD_SANITIZER(for (unsigned i = 0; i < threads_; ++i) {
    if (!kept_fiber_[i]) kept_fiber_[i] = &new_fiber();
  })

  const std::uint64_t blocks = std::uint64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
  order_ = settings().order;
  early_copies_ = settings().early_copies;
  // Shuffled: a walk with a stride that has no factor in common with the number of blocks comes past each of them once.
  std::uint64_t stride = 1, start = 0;
  if (order_ == ThreadOrder::shuffle && blocks > 1) {
    start = random() % blocks;
    do {
      stride = 1 + random() % blocks;
    } while (std::gcd(stride, blocks) != 1);
  }
  for (std::uint64_t i = 0; i < blocks; ++i) {
    start_block(order_ == ThreadOrder::reverse ? blocks - 1 - i : (start + i * stride) % blocks);
    tsan_release(&block_begin_);
    switch_away();
    tsan_acquire(&block_end_);
  }
  running_executor = nullptr;
}

void BlockExecutor::start_block(std::uint64_t block) {
  blockIdx = {static_cast<unsigned>(block % grid_.blocks.x), static_cast<unsigned>(block / grid_.blocks.x % grid_.blocks.y),
              static_cast<unsigned>(block / grid_.blocks.x / grid_.blocks.y)};
  for (unsigned i = 0; i < threads_; ++i) {
    thread_[i].state = State::ready;
    thread_[i].fiber = nullptr;
  }
  const unsigned used_warps = (threads_ + 31) / 32;
  for (unsigned i = 0; i < used_warps; ++i) {
    const unsigned lanes = std::min(32u, threads_ - 32 * i);
    warp_[i].ready = lanes == 32 ? all_lanes : (1u << lanes) - 1;
    warp_[i].exited = ~warp_[i].ready;
    warp_[i].open.clear();
  }
  warps_ready_ = used_warps == 32 ? all_lanes : (1u << used_warps) - 1;
  barrier_.arrived = 0;
  any_copies_ = false;
  exited_ = 0;
  current_ = 0;
  // What nobody has written is NaN, and was not left by the last block.
  std::memset(current_thread.dynamic_shared, 0xff, grid_.dynamic_shared_bytes);
  for (const SharedVariable& variable : symbols_->shared)
    std::memset(static_shared_ + variable.offset, 0xff, variable.bytes);
}

// ---- Which thread runs ---------------------------------------------------------------------------------------------

std::uint64_t BlockExecutor::random() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_;
}

[[gnu::always_inline]] inline unsigned BlockExecutor::choose(unsigned set) {
  switch (order_) {
    case ThreadOrder::forward:
      return static_cast<unsigned>(std::countr_zero(set));
    case ThreadOrder::reverse:
      return 31u - static_cast<unsigned>(std::countl_zero(set));
    case ThreadOrder::shuffle:
      break;
  }
  const int turn = static_cast<int>(random() >> 20 & 31);
  return (static_cast<unsigned>(std::countr_zero(std::rotr(set, turn))) + static_cast<unsigned>(turn)) & 31u;
}

// A warp mostly runs on while it can, even when shuffled: if warps took turns, all of them would be near the same line all
// the time, and a missing barrier would hardly ever be noticed.
[[gnu::always_inline]] inline unsigned BlockExecutor::choose_next() {
  if (warps_ready_ == 0) return nobody;
  unsigned warp = current_ / 32;
  const bool stay = order_ == ThreadOrder::shuffle && warp_[warp].ready != 0 && (random() >> 20 & 7) != 0;
  if (!stay) warp = choose(warps_ready_);
  return 32 * warp + choose(warp_[warp].ready);
}

[[gnu::always_inline]] inline void BlockExecutor::become(unsigned thread) {
  Warp& warp = warp_[thread / 32];
  warp.ready &= ~(1u << thread % 32);
  if (warp.ready == 0) warps_ready_ &= ~(1u << thread / 32);
  current_ = thread;
  thread_[thread].state = State::running;
  threadIdx = thread_[thread].index;
  current_thread.number = thread;
}

void BlockExecutor::make_ready(unsigned thread) {
  thread_[thread].state = State::ready;
  warp_[thread / 32].ready |= 1u << thread % 32;
  warps_ready_ |= 1u << thread / 32;
}

Fiber& BlockExecutor::new_fiber() {
  fibers_.push_back(std::make_unique<Fiber>(fiber_entry));
  return *fibers_.back();
}

Fiber& BlockExecutor::fiber_of(unsigned thread) {
  Fiber*& fiber = thread_[thread].fiber;
  if (fiber) return *fiber;
#ifdef SIMULATED_CUDA_THREAD_SANITIZER
  fiber = kept_fiber_[thread];
#else
  if (idle_fibers_.empty()) {
    fiber = &new_fiber();
  } else {
    fiber = idle_fibers_.back();
    idle_fibers_.pop_back();
  }
#endif
  return *fiber;
}

void BlockExecutor::go_on_with(Fiber& fiber) {
  Fiber& from = *current_fiber_;
  current_fiber_ = &fiber;
  Fiber::switch_to(from, fiber);
}

/// Lets another thread run, or the launcher if all have exited. Returns when the calling thread is chosen again.
void BlockExecutor::switch_away() {
  const unsigned next = choose_next();
  if (next != nobody) {
    become(next);
    go_on_with(fiber_of(next));
  } else {
    if (exited_ != threads_) report_deadlock();
    go_on_with(*launcher_);
  }
}

void BlockExecutor::fiber_entry() {
  Fiber::entered();
  running_executor->run_threads();
}

/// What a fiber does for ever: it runs the current thread and then takes over a thread that has not begun, if there is one.
void BlockExecutor::run_threads() {
  for (;;) {
    tsan_acquire(&block_begin_);
    call_.run(call_.arguments);
    finish_thread();
#ifndef SIMULATED_CUDA_THREAD_SANITIZER
    const unsigned next = choose_next();
    if (next != nobody && !thread_[next].fiber) {
      thread_[next].fiber = current_fiber_;
      become(next);
      continue;
    }
    idle_fibers_.push_back(current_fiber_);
    if (next != nobody) {
      become(next);
      go_on_with(fiber_of(next));
      continue;
    }
#endif
    switch_away();
  }
}

void BlockExecutor::finish_thread() {
  if (any_copies_) check_no_copies_left();
  tsan_release(&block_end_);
  thread_[current_].state = State::exited;
  ++exited_;
  Warp& warp = warp_[current_ / 32];
  warp.exited |= 1u << current_ % 32;
  for (std::size_t i = warp.open.size(); i-- > 0;) {  // some lanes may have waited for this one only
    if (warp.open[i].arrived == (warp.open[i].mask & ~warp.exited)) complete(warp, i);
  }
  if (barrier_.arrived > 0 && barrier_.arrived == threads_ - exited_) release_barrier();
}

void BlockExecutor::wait_in(State state, const char* function, std::source_location where) {
  thread_[current_].state = state;
  wait_[current_] = {where, function};
}

void BlockExecutor::report_deadlock() const {
  unsigned at_barrier = 0, in_collective = 0;
  std::string examples;
  State last = State::exited;
  for (unsigned i = 0; i < threads_; ++i) {
    const Thread& thread = thread_[i];
    if (thread.state == State::at_barrier) ++at_barrier;
    if (thread.state == State::in_collective) ++in_collective;
    if (thread.state != State::exited && thread.state != last) {
      last = thread.state;
      if (examples.size() < 400) {
        examples += "; thread (" + std::to_string(thread.index.x) + "," + std::to_string(thread.index.y) + "," +
                    std::to_string(thread.index.z) + ") waits in " + wait_[i].function + " at " + place(wait_[i].where);
      }
    }
  }
  fail("deadlock: %u threads wait at a barrier, %u for lanes of their warp, %u have exited%s", at_barrier, in_collective,
       exited_, examples.c_str());
}

// ---- Barriers ------------------------------------------------------------------------------------------------------

void BlockExecutor::barrier(std::source_location where, BlockOperation operation, void* value) {
  if (barrier_.arrived == 0) {
    barrier_.where = where;
    barrier_.operation = operation;
    if (operation) std::fill_n(barrier_.values.begin(), threads_, nullptr);
  } else if (!same_place(barrier_.where, where)) {
    fail("divergent barrier: this thread waits at %s, others of its block at %s", place(where).c_str(),
         place(barrier_.where).c_str());
  }
  tsan_release(&barrier_);
  const unsigned generation = barriers_passed_;
  barrier_.values[current_] = value;
  wait_in(State::at_barrier, "__syncthreads", where);
  if (++barrier_.arrived == threads_ - exited_) release_barrier();
  switch_away();
  tsan_acquire(&barrier_wake_[generation & 1]);
}

void BlockExecutor::release_barrier() {
  tsan_acquire(&barrier_);
  if (barrier_.operation) barrier_.operation(barrier_.values.data(), threads_);
  tsan_release(&barrier_wake_[barriers_passed_++ & 1]);
  barrier_.arrived = 0;
  for (unsigned i = 0; i < threads_; ++i) {
    if (thread_[i].state == State::at_barrier) make_ready(i);
  }
}

// ---- Warps ---------------------------------------------------------------------------------------------------------

void BlockExecutor::collective(unsigned mask, void* value, const WarpOperation& operation, std::source_location where) {
  const unsigned lane = current_ % 32, bit = 1u << lane;
  Warp& warp = warp_[current_ / 32];
  if (!(mask & bit))
    fail("lane %u calls %s at %s, but is not in its mask %08x", lane, operation.name, place(where).c_str(), mask);
  Collective* mine = nullptr;
  for (Collective& other : warp.open) {
    if (!(other.mask & mask)) continue;
    if (other.mask != mask || other.operation->run != operation.run ||
        (operation.one_site && !same_place(other.where, where))) {
      fail(
          "divergent warp: lane %u is in %s with mask %08x at %s, but lanes %08x of its warp wait in %s with mask %08x at "
          "%s",
          lane, operation.name, mask, place(where).c_str(), other.arrived, other.operation->name, other.mask,
          place(other.where).c_str());
    }
    mine = &other;
  }
  if (!mine) {
    mine = &warp.open.emplace_back();
    mine->mask = mask;
    mine->operation = &operation;
    mine->where = where;
  }
  tsan_release(&warp);
  mine->arrived |= bit;
  mine->values[lane] = value;
  wait_in(State::in_collective, operation.name, where);
  if (mine->arrived == (mask & ~warp.exited)) complete(warp, static_cast<std::size_t>(mine - warp.open.data()));
  const unsigned own = current_;
  switch_away();
  tsan_acquire(&lane_wake_[own]);
}

void BlockExecutor::complete(Warp& warp, std::size_t position) {
  Collective& collective = warp.open[position];
  const unsigned lanes = collective.arrived;
  if (collective.operation->needs_all_lanes && lanes != all_lanes) {
    fail("%s at %s needs all 32 lanes of the warp; only %08x came, the others have exited", collective.operation->name,
         place(collective.where).c_str(), lanes);
  }
  tsan_acquire(&warp);
  collective.operation->run(collective.values.data(), lanes);
  const unsigned first = static_cast<unsigned>(&warp - warp_.data()) * 32;
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const unsigned thread = first + static_cast<unsigned>(std::countr_zero(rest));
    tsan_release(&lane_wake_[thread]);
    make_ready(thread);
  }
  if (position + 1 < warp.open.size()) warp.open[position] = warp.open.back();
  warp.open.pop_back();
}

// ---- Asynchronous copies -------------------------------------------------------------------------------------------

void BlockExecutor::land(const Copy& copy) {
  const auto filled = static_cast<std::size_t>(copy.source_bytes), all = static_cast<std::size_t>(copy.bytes);
  if (filled > 0) {
    tsan_read(copy.global, filled);
    std::memcpy(copy.shared, copy.global, filled);
  }
  tsan_write(copy.shared, all);
  std::memset(static_cast<char*>(copy.shared) + filled, 0, all - filled);
}

void BlockExecutor::copy_async(void* shared, const void* global, int bytes, int source_bytes) {
  const auto unit = static_cast<std::uintptr_t>(bytes) - 1;
  if ((reinterpret_cast<std::uintptr_t>(shared) | reinterpret_cast<std::uintptr_t>(global)) & unit) {
    fail("asynchronous copy of %d bytes from %p to %p: addresses have to be multiples of %d", bytes, global, shared, bytes);
  }
  any_copies_ = true;
  count(counters().shared_copies);
  count(counters().shared_copy_bytes, static_cast<unsigned long>(source_bytes));
  if (bytes == 16) count_bank_conflicts(shared);
  const Copy copy{shared, global, bytes, source_bytes};
  if (early_copies_) land(copy);
  copies_[current_].copies.push_back(copy);  // also if it has landed: whoever does not wait for it is wrong all the same
}

// The n-th copy of each of 8 consecutive lanes makes one wavefront, if all go to different banks.
void BlockExecutor::count_bank_conflicts(const void* shared) {
  PendingCopies& own = copies_[current_];
  CopyWavefront& wavefront = wavefronts_[current_ / 8][own.issued++ % 64];
  ++wavefront.copies_in_banks[reinterpret_cast<std::uintptr_t>(shared) / 16 & 7];
  if (++wavefront.lanes < 8) return;
  count(counters().shared_copy_wavefronts, *std::ranges::max_element(wavefront.copies_in_banks));
  count(counters().shared_copy_wavefronts_ideal);
  wavefront = {};
}

void BlockExecutor::commit_copies() {
  PendingCopies& own = copies_[current_];
  own.group_ends.push_back(own.copies.size());
}

void BlockExecutor::wait_copies(int pending) {
  PendingCopies& own = copies_[current_];
  while (own.group_ends.size() - own.groups_landed > static_cast<std::size_t>(pending)) {
    const std::size_t end = own.group_ends[own.groups_landed++];
    for (; own.landed < end; ++own.landed) {
      if (!early_copies_) land(own.copies[own.landed]);
    }
  }
  if (own.groups_landed == own.group_ends.size() && own.landed == own.copies.size()) {
    own.copies.clear();
    own.group_ends.clear();
    own.landed = own.groups_landed = 0;
  }
}

void BlockExecutor::check_no_copies_left() {
  PendingCopies& own = copies_[current_];
  if (own.landed != own.copies.size()) fail("a thread exits before its asynchronous copies have arrived");
  own.copies.clear();
  own.group_ends.clear();
  own.landed = own.groups_landed = 0;
  own.issued = 0;
}

// ---- What device code calls ----------------------------------------------------------------------------------------

namespace {

BlockExecutor& executor(const char* function) {
  if (!running_executor) fail("%s was called outside of a kernel", function);
  return *running_executor;
}

}  // namespace

void block_barrier(std::source_location where, BlockOperation operation, void* value) {
  executor("__syncthreads").barrier(where, operation, value);
}

void warp_collective(unsigned mask, void* value, const WarpOperation& operation, std::source_location where) {
  executor(operation.name).collective(mask, value, operation, where);
}

void copy_async(void* shared, const void* global, int bytes, int source_bytes) {
  executor("copy_async").copy_async(shared, global, bytes, source_bytes);
}
void commit_copies() {
  executor("commit_copies").commit_copies();
}
void wait_copies(int pending) {
  executor("wait_copies").wait_copies(pending);
}

}  // namespace simulated_cuda
