// How a rank waits on a machine that it may share with more ranks than there are cores.
// defines: Backoff
#pragma once

#include <sched.h>

#include <chrono>
#include <thread>

namespace escalera {

/// Called in a loop until something has come true: at first it spins, for what takes a microsecond among ranks that run
/// at the same time; then it offers the core to others, one of whom may be the rank waited for; then it says that it is
/// time to sleep, so that a long wait costs the ranks that compute next to nothing.
class Backoff {
 public:
  /// true: nothing more to gain from staying awake.
  bool pause() {
    if (++rounds_ <= spins) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      return false;
    }
    // Not a number of times: on a crowded machine one yield can last milliseconds, and whoever sleeps is woken sooner than
    // whoever merely stands in the queue.
    const auto now = std::chrono::steady_clock::now();
    if (rounds_ == spins + 1) patience_ends_ = now + patience;
    if (now >= patience_ends_) return true;
    sched_yield();
    return false;
  }
  /// For waits that nothing can wake: sleeps briefly where pause() says so.
  void pause_or_sleep(std::chrono::microseconds sleep) {
    if (pause()) std::this_thread::sleep_for(sleep);
  }
  void restart() {
    rounds_ = 0;
  }

 private:
  static constexpr int spins = 200;
  static constexpr std::chrono::microseconds patience{30};
  int rounds_ = 0;
  std::chrono::steady_clock::time_point patience_ends_;
};

}  // namespace escalera
