#include "common/core/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace escalera {
namespace {

// A job whose cost (roughly: elements touched) is below this runs faster in the caller than it takes to wake a thread.
constexpr Index smallest_shared_job = 8192;

using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds spin_time{30};     // the usual gap between two operations of a training step
constexpr std::chrono::microseconds yield_time{1000};  // afterwards somebody else certainly wants the core more

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Returns once `value` differs from `old`: spins, then yields, then sleeps in the kernel. Spinning alone would let two
/// ranks on one core wait for each other's time slice; sleeping alone costs tens of microseconds per job.
void await_change(const std::atomic<int>& value, int old) {
  const auto start = Clock::now();
  for (;;) {
    for (int i = 0; i < 32; i++) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause_briefly();
    }
    const auto waited = Clock::now() - start;
    if (waited > yield_time) {
      value.wait(old, std::memory_order_acquire);
      return;
    }
    if (waited > spin_time) sched_yield();
  }
}

}  // namespace

struct ThreadPool::Team {
  std::atomic<int> job{0};      // counts jobs; a change is the signal to start
  std::atomic<int> working{0};  // threads that have not finished the job
  const std::function<void(int)>* body = nullptr;  // null: go home
  std::mutex mutex;
  std::exception_ptr failure;  // the first one of this job; guarded by mutex
  std::vector<std::thread> threads;

  void call(int thread) noexcept {
    try {
      (*body)(thread);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  }

  void work(int thread) {
    for (int seen = 0;;) {
      await_change(job, seen);
      seen++;  // the next job cannot start before this thread has finished this one, so none is skipped
      if (!body) return;
      call(thread);
      if (working.fetch_sub(1, std::memory_order_acq_rel) == 1) working.notify_one();
    }
  }

  void start(const std::function<void(int)>* next) {
    body = next;
    working.store(static_cast<int>(threads.size()), std::memory_order_relaxed);
    job.fetch_add(1, std::memory_order_release);
    job.notify_all();
  }
};

ThreadPool::ThreadPool(int threads) : size_(threads), team_(std::make_unique<Team>()) {
  require(threads >= 1, "a rank needs at least one compute thread, not {}", threads);
  for (int thread = 1; thread < threads; thread++) {
    team_->threads.emplace_back([team = team_.get(), thread] { team->work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  team_->start(nullptr);
  for (std::thread& thread : team_->threads) thread.join();
}

void ThreadPool::run(const std::function<void(int thread)>& body) {
  if (size_ == 1) {
    body(0);
    return;
  }
  team_->start(&body);
  team_->call(0);
  for (int left = 0; (left = team_->working.load(std::memory_order_acquire)) != 0;) await_change(team_->working, left);
  if (team_->failure) std::rethrow_exception(std::exchange(team_->failure, nullptr));
}

void ThreadPool::for_ranges(Index count, Index cost_per_item,
                            const std::function<void(Index begin, Index end, int thread)>& body) {
  if (count <= 0) return;
  if (size_ == 1 || count == 1 || count * cost_per_item < smallest_shared_job) {
    body(0, count, 0);
    return;
  }
  const auto one_range = [&](int thread) {
    const Index begin = count * thread / size_;
    const Index end = count * (thread + 1) / size_;
    if (begin < end) body(begin, end, thread);
  };
  run(std::ref(one_range));  // a reference fits into std::function without an allocation
}

}  // namespace escalera
