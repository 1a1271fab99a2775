// SIGINT and SIGTERM: the first asks for an orderly end after the current step, the second ends the program
// at once. defines: SignalWatch, CleanupOnSignal
#pragma once

#include <string>

namespace escalera {

/// While one lives, the first SIGINT or SIGTERM only sets a flag, and a second one removes the files that
/// CleanupOnSignal knows and lets the signal end the process. Ranks that are threads of one process may each
/// hold one; the handlers go back to what they were with the last.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// true once a signal has arrived in this process.
  bool requested() const;
};

/// A file that is being written under a temporary name: the second signal removes it. Holds up to 255 bytes
/// of path and 16 files per process; beyond that the file is not guarded, which is harmless.
class CleanupOnSignal {
 public:
  explicit CleanupOnSignal(const std::string& path);
  ~CleanupOnSignal();
  CleanupOnSignal(const CleanupOnSignal&) = delete;
  CleanupOnSignal& operator=(const CleanupOnSignal&) = delete;

 private:
  int slot_ = -1;
};

}  // namespace escalera
