// SIGINT, SIGTERM and SIGUSR1: the first asks for an orderly end after the current step, the second ends the program.
// (mpirun passes SIGUSR1 on to its ranks; SIGINT and SIGTERM it takes as an order to end them by force, within seconds.)
// defines: SignalThread, SignalWatch, CleanupOnSignal
#pragma once

#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace escalera {

/// A thread that receives the signals above in place of all others: of the caller and of all threads that are made later.
/// Make one in main, before any other thread.
///
/// A handler runs on the stack of the thread it interrupts. Generated kernels of oneDNN point the stack register into a
/// buffer on the heap while they work, and a handler on top of them overwrites whatever lies in front of that buffer. So
/// the threads that compute must never be interrupted.
class SignalThread {
 public:
  SignalThread();
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  sigset_t previous_;
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;
  std::thread thread_;
};

/// While one lives, the first signal only sets a flag, and a second one removes the files that
/// CleanupOnSignal knows and lets the signal end the process. Ranks that are threads of one process may each
/// hold one; with the last of them the handlers go back to what they were.
class SignalWatch {
 public:
  /// `announce`: say on stderr, when the first signal arrives, what it does. True on one rank only.
  explicit SignalWatch(bool announce = false);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// true once a signal has arrived in this process.
  bool requested() const;
};

/// A file that is being written under a temporary name: the second signal removes it. A process can guard 16
/// files with paths of up to 511 bytes at a time; further ones are not guarded.
class CleanupOnSignal {
 public:
  /// Guards `path` from now on.
  explicit CleanupOnSignal(const std::string& path);
  ~CleanupOnSignal();
  CleanupOnSignal(const CleanupOnSignal&) = delete;
  CleanupOnSignal& operator=(const CleanupOnSignal&) = delete;

 private:
  int slot_ = -1;
};

}  // namespace escalera
