// Streams: queues of tasks that run in order, on the host thread that waits for them. No task blocks: one that cannot run yet
// (an event of another stream has not happened, another rank has not come to a collective) says what it waits for, and
// whoever waits lets that move on first. So host threads may wait for different streams of a device at once, and a rank's
// work goes on while its own thread does something else, as on a GPU.
// defines: Task, StreamPoint, Stream, enqueue(), enqueue_wait(), wait_for(), advance_a_little(), Patience
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda_runtime.h>

namespace simulated_cuda {

class Stream;

/// A point in a stream: after its first `position` tasks.
struct StreamPoint {
  std::shared_ptr<Stream> stream;
  std::uint64_t position = 0;
};

class Task {
 public:
  virtual ~Task() = default;
  /// Does the work; false if that is not possible yet.
  virtual bool run() = 0;
  /// After run() was false: what has to move on for it.
  virtual std::vector<StreamPoint> waits_for() { return {}; }
  /// Tells the task its place, before it can run.
  virtual void queued(const StreamPoint&) {}
};

class Stream {
 public:
  Stream(int device, bool waits_for_default) : device_(device), waits_for_default_(waits_for_default) {}

  int device() const { return device_; }
  /// Whether it is ordered with the device's default stream (no cudaStreamNonBlocking).
  bool waits_for_default() const { return waits_for_default_; }

  /// Returns the position at which the task is done.
  static std::uint64_t push(const std::shared_ptr<Stream>& stream, std::unique_ptr<Task> task);
  std::uint64_t issued() const;
  bool reached(std::uint64_t position) const;

  /// Runs tasks, and those of other streams that they wait for, at most `budget` in all, until `position` is reached or
  /// nothing can move. Says whether it was reached. What another host thread is just running is left to it.
  bool advance(std::uint64_t position, long& budget);

 private:
  const int device_;
  const bool waits_for_default_;
  mutable std::mutex mutex_;
  std::deque<std::unique_ptr<Task>> queue_;
  std::uint64_t issued_ = 0, completed_ = 0;
  bool advancing_ = false;  // some host thread is at it
};

/// Puts a task at the end of the stream; it begins after `after` and what the stream is ordered with implicitly. Eager streams
/// run what they can at once.
StreamPoint enqueue(const std::shared_ptr<Stream>& stream, std::unique_ptr<Task> task, std::vector<StreamPoint> after = {});
StreamPoint enqueue(const std::shared_ptr<Stream>& stream, std::function<void()> work);
/// Lets the stream wait for a point of another.
void enqueue_wait(const std::shared_ptr<Stream>& stream, const StreamPoint& point);
/// Blocks the host thread.
void wait_for(const StreamPoint& point);
/// What a query does: a lazy stream runs one task, so that a loop of queries comes to an end. Says whether `point` is reached.
bool advance_a_little(const StreamPoint& point);

/// How long something has been waited for while nothing in the process moved: no task was running or came to its end.
class Patience {
 public:
  /// Call it again and again while waiting; only the time between calls that are close together counts, because whoever does
  /// something else meanwhile does not wait.
  bool exhausted(double seconds);

 private:
  std::uint64_t finished_ = 0;
  double waited_ = 0;
  std::chrono::steady_clock::time_point last_{};
};

/// Makes all who wait look again.
void announce_progress();

}  // namespace simulated_cuda
