// A counter in shared memory that processes wait on.
// defines: SharedCounter
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "common/comm/mpi/backoff.h"

namespace escalera {

/// One rank advances it, others wait until it has come far enough. All zero bits at first. It wraps around; the difference
/// between what is waited for and what is reached must stay below 2^31.
class SharedCounter {
 public:
  std::uint32_t value() const { return value_.load(std::memory_order_acquire); }
  bool reached(std::uint32_t target) const { return static_cast<std::int32_t>(value() - target) >= 0; }

  /// Everything written before is seen by those who see the new value. Wakes sleepers.
  void advance();

  /// Returns when the counter has reached `target`. About five times a second of a long wait, `still_hopeful` is called;
  /// it throws to end the wait.
  template <class StillHopeful>
  void wait_until(std::uint32_t target, StillHopeful&& still_hopeful) {
    Backoff backoff;
    while (!reached(target)) {
      if (!backoff.pause()) continue;
      const std::uint32_t seen = value();
      if (static_cast<std::int32_t>(seen - target) >= 0) return;
      if (!sleep(seen)) still_hopeful();
    }
  }

  /// Sleeps while the value is `seen`, at most 200 ms; false if the time ran out or a signal came.
  bool sleep(std::uint32_t seen);

 private:
  std::atomic<std::uint32_t> value_;
  std::atomic<std::uint32_t> sleepers_;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "processes share these");

}  // namespace escalera
