// SIGINT and SIGTERM: the first asks for an orderly end after the current step, the second ends the program.
// defines: SignalWatch, CleanupOnSignal
#pragma once

#include <string>

namespace escalera {

/// While one lives, the first SIGINT or SIGTERM only sets a flag, and a second one removes the files that
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
