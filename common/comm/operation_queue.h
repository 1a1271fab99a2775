// The order in which one rank's collectives on one communicator run, and the thread they run on.
// defines: OperationQueue
#pragma once

#include <functional>
#include <memory>

#include "common/comm/communicator.h"

namespace escalera {

/// Runs operations one after another beside the caller. The thread starts with the first operation that needs one: a
/// blocking call with nothing in flight runs in the caller itself. After an operation has thrown, those behind it throw
/// the same, because ranks that skipped one would meet in the wrong ones.
class OperationQueue {
 public:
  /// `give_up` makes operations that wait for other ranks throw soon.
  explicit OperationQueue(std::function<void()> give_up);
  ~OperationQueue() { finish(); }
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  /// Queues `operation` and returns at once; the Work waits for it and throws what it threw. If `blocking` and
  /// nothing is in flight, it runs and throws here instead.
  Work submit(std::function<void()> operation, bool blocking);
  /// Waits for what is in flight and ends the thread; nothing may be submitted afterwards. When an exception is on its way
  /// up, it gives up first.
  void finish();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace escalera
