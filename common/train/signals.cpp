#include "common/train/signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

namespace escalera {
namespace {

// A signal arrives in a process, not in an object, so this is the one place with state that is not owned by main. The
// handler may run between any two instructions of any thread: it reads and writes lock-free atomics only, and calls
// nothing that is not on POSIX's list of async-signal-safe functions.
std::atomic<int> signals_seen{0};
std::atomic<bool> announce_first{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

struct GuardedFile {
  std::atomic<bool> taken{false};   // belongs to a CleanupOnSignal
  std::atomic<bool> active{false};  // the path below is complete
  std::array<char, 512> path{};
};
std::array<GuardedFile, 16> guarded_files;

void on_signal(int signal) {
  const int error = errno;
  if (signals_seen.fetch_add(1) == 0) {
    if (announce_first) {
      constexpr char text[] = "\nstopping after this step; once more stops now\n";
      [[maybe_unused]] const auto written = write(STDERR_FILENO, text, sizeof text - 1);
    }
    errno = error;
    return;
  }
  for (GuardedFile& file : guarded_files) {
    if (file.active) unlink(file.path.data());
  }
  // The signal is held back while its handler runs; with the default action it ends the process on return.
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  sigaction(signal, &standard, nullptr);
  raise(signal);
}

constexpr std::array watched_signals{SIGINT, SIGTERM, SIGUSR1};

sigset_t watched_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : watched_signals) sigaddset(&set, signal);
  return set;
}

// Installing and removing happens outside the handler and may lock.
std::mutex watches_mutex;
int watches = 0;
std::array<struct sigaction, watched_signals.size()> previous_actions;

}  // namespace

SignalThread::SignalThread() {
  const sigset_t set = watched_set();
  pthread_sigmask(SIG_BLOCK, &set, &previous_);
  thread_ = std::thread([this, set] {
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    std::unique_lock lock(mutex_);
    over_.wait(lock, [this] { return done_; });
  });
}

SignalThread::~SignalThread() {
  {
    std::lock_guard lock(mutex_);
    done_ = true;
  }
  over_.notify_one();
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

SignalWatch::SignalWatch(bool announce) {
  std::lock_guard lock(watches_mutex);
  if (announce) announce_first = true;
  if (watches++ > 0) return;
  signals_seen = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // a read or write under way goes on
  for (std::size_t i = 0; i < watched_signals.size(); ++i) {
    sigaction(watched_signals[i], &action, &previous_actions[i]);
  }
}

SignalWatch::~SignalWatch() {
  std::lock_guard lock(watches_mutex);
  if (--watches > 0) return;
  announce_first = false;
  for (std::size_t i = 0; i < watched_signals.size(); ++i) {
    sigaction(watched_signals[i], &previous_actions[i], nullptr);
  }
}

bool SignalWatch::requested() const {
  return signals_seen > 0;
}

CleanupOnSignal::CleanupOnSignal(const std::string& path) {
  for (std::size_t slot = 0; slot < guarded_files.size(); ++slot) {
    GuardedFile& file = guarded_files[slot];
    if (path.size() + 1 > file.path.size() || file.taken.exchange(true)) continue;
    std::memcpy(file.path.data(), path.c_str(), path.size() + 1);
    file.active = true;
    slot_ = static_cast<int>(slot);
    return;
  }
}

CleanupOnSignal::~CleanupOnSignal() {
  if (slot_ < 0) return;
  GuardedFile& file = guarded_files[static_cast<std::size_t>(slot_)];
  file.active = false;
  file.taken = false;
}

}  // namespace escalera
