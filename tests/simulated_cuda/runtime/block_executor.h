// Runs the blocks of a kernel, one after the other, on the calling host thread. The CUDA threads of a block are called in a
// plain loop; one that has to wait (at a barrier, or for the other lanes of its warp) keeps its stack, a fiber, and the next
// thread gets another. So kernels without barriers run at the speed of a loop.
// defines: KernelCall, Grid, BlockExecutor
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <source_location>
#include <vector>

#include <cuda_runtime.h>

#include <simulated_cuda/settings.h>

#include "tests/simulated_cuda/runtime/fiber.h"

namespace simulated_cuda {

/// A kernel with its arguments; run(arguments) is what one CUDA thread does.
struct KernelCall {
  const void* kernel = nullptr;
  void (*run)(const void* arguments) = nullptr;
  const void* arguments = nullptr;
};

struct Grid {
  dim3 blocks, threads;
  std::size_t dynamic_shared_bytes = 0;
  std::uint64_t random = 0;  // where the shuffled order starts
};

struct KernelSymbols;

// Hidden: in code for shared libraries the compiler would otherwise expect that somebody replaces these functions.
class __attribute__((visibility("hidden"))) BlockExecutor {
 public:
  static constexpr unsigned most_threads = 1024;
  static constexpr unsigned warps = most_threads / 32;

  /// The host thread's own.
  static BlockExecutor& of_this_thread();
  /// The one that is running a kernel on this host thread, or null.
  static BlockExecutor* running();

  BlockExecutor();
  ~BlockExecutor();

  void run(const KernelCall& call, const Grid& grid);

  const KernelCall& call() const { return call_; }
  /// Whether a CUDA thread is what runs, and not the bookkeeping between blocks.
  bool inside_kernel() const { return current_fiber_ != launcher_.get(); }

  // What CUDA threads call; see execution.h and async_copy.h.
  void barrier(std::source_location where, BlockOperation operation, void* value);
  void collective(unsigned mask, void* value, const WarpOperation& operation, std::source_location where);
  void copy_async(void* shared, const void* global, int bytes, int source_bytes);
  void commit_copies();
  void wait_copies(int pending);

 private:
  enum class State : std::uint8_t { ready, running, at_barrier, in_collective, exited };

  struct Thread {
    Fiber* fiber = nullptr;  // once it has begun
    uint3 index{};
    State state = State::ready;
  };
  /// What a waiting thread is in, for reports.
  struct Wait {
    std::source_location where;
    const char* function = nullptr;
  };

  /// Lanes of a warp that wait for each other. Several may be open at once if their masks have no lane in common.
  struct Collective {
    unsigned mask = 0, arrived = 0;
    const WarpOperation* operation = nullptr;
    std::source_location where;
    std::array<void*, 32> values{};
  };

  struct Warp {
    unsigned ready = 0, exited = 0;  // lanes; those that the block does not have count as exited
    std::vector<Collective> open;
  };

  struct Barrier {
    unsigned arrived = 0;
    std::source_location where;
    BlockOperation operation = nullptr;
    std::array<void*, most_threads> values{};
  };

  /// Asynchronous copies of one thread. The first `landed` of them have moved their bytes; a group ends where group_ends says.
  struct Copy {
    void* shared;
    const void* global;
    int bytes, source_bytes;
  };
  struct PendingCopies {
    std::vector<Copy> copies;
    std::vector<std::size_t> group_ends;
    std::size_t landed = 0, groups_landed = 0;
    unsigned issued = 0;
  };

  /// The 16-byte copies that 8 consecutive lanes issue together: how many fall into the same banks.
  struct CopyWavefront {
    std::array<unsigned char, 8> copies_in_banks{};
    unsigned lanes = 0;
  };

  static void fiber_entry();
  void run_threads();
  void start_block(std::uint64_t block);
  void finish_thread();
  void switch_away();
  void go_on_with(Fiber& fiber);
  static constexpr unsigned nobody = ~0u;
  unsigned choose_next();         // the thread that runs next, or nobody
  unsigned choose(unsigned set);  // one of the bits, by the order in force
  void become(unsigned thread);
  Fiber& new_fiber();
  Fiber& fiber_of(unsigned thread);
  void make_ready(unsigned thread);
  void release_barrier();
  void complete(Warp& warp, std::size_t position);
  std::uint64_t random();
  static void land(const Copy& copy);
  void count_bank_conflicts(const void* shared);
  void check_no_copies_left();
  void wait_in(State state, const char* function, std::source_location where);
  [[noreturn]] void report_deadlock() const;

  KernelCall call_;
  Grid grid_;
  const KernelSymbols* symbols_ = nullptr;
  char* static_shared_ = nullptr;
  unsigned threads_ = 0, current_ = 0, exited_ = 0;
  unsigned warps_ready_ = 0;  // warps with a ready lane
  std::uint64_t random_ = 0;
  ThreadOrder order_ = ThreadOrder::forward;
  bool early_copies_ = false;
  std::array<Thread, most_threads> thread_{};
  std::array<Wait, most_threads> wait_{};
  std::array<Warp, warps> warp_{};
  Barrier barrier_;
  unsigned barriers_passed_ = 0;
  std::array<PendingCopies, most_threads> copies_{};
  bool any_copies_ = false;  // since the block began
  std::array<std::array<CopyWavefront, 64>, most_threads / 8> wavefronts_{};

  struct SharedMemory;
  std::unique_ptr<SharedMemory> shared_memory_;
  std::unique_ptr<Fiber> launcher_;
  Fiber* current_fiber_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_fibers_;
  std::array<Fiber*, most_threads> kept_fiber_{};  // under ThreadSanitizer each thread has a fiber that is its identity

  // Places where ThreadSanitizer is told what happened before what. Waking up has places of its own: a thread that runs on
  // to the next barrier must not seem to be ordered with one that has not yet left this one.
  char block_begin_ = 0, block_end_ = 0, barrier_wake_[2] = {};
  std::array<char, most_threads> lane_wake_{};
};

}  // namespace simulated_cuda
