#include "tests/simulated_cuda/runtime/stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <utility>

#include <simulated_cuda/settings.h>

#include "tests/simulated_cuda/runtime/device.h"

namespace simulated_cuda {
namespace {

/// Where host threads sleep while others run what they wait for.
struct Board {
  std::mutex mutex;
  std::condition_variable moved;
  std::atomic<std::uint64_t> finished = 0;
  std::atomic<int> running = 0, sleepers = 0;
};

Board& board() {
  static Board& instance = *new Board;
  return instance;
}

class FunctionTask final : public Task {
 public:
  explicit FunctionTask(std::function<void()> work) : work_(std::move(work)) {}
  bool run() override {
    ++board().running;
    work_();
    --board().running;
    return true;
  }

 private:
  std::function<void()> work_;
};

class WaitTask final : public Task {
 public:
  explicit WaitTask(StreamPoint point) : point_(std::move(point)) {}
  bool run() override { return point_.stream->reached(point_.position); }
  std::vector<StreamPoint> waits_for() override { return {point_}; }

 private:
  StreamPoint point_;
};

/// A task that begins after points of other streams.
class OrderedTask final : public Task {
 public:
  OrderedTask(std::vector<StreamPoint> after, std::unique_ptr<Task> task)
      : after_(std::move(after)), task_(std::move(task)) {}
  bool run() override {
    std::erase_if(after_, [](const StreamPoint& point) { return point.stream->reached(point.position); });
    return after_.empty() && task_->run();
  }
  std::vector<StreamPoint> waits_for() override { return after_.empty() ? task_->waits_for() : after_; }
  void queued(const StreamPoint& point) override { task_->queued(point); }

 private:
  std::vector<StreamPoint> after_;
  std::unique_ptr<Task> task_;
};

}  // namespace

std::uint64_t Stream::push(const std::shared_ptr<Stream>& stream, std::unique_ptr<Task> task) {
  std::lock_guard lock(stream->mutex_);
  task->queued({stream, stream->issued_ + 1});
  stream->queue_.push_back(std::move(task));
  return ++stream->issued_;
}

std::uint64_t Stream::issued() const {
  std::lock_guard lock(mutex_);
  return issued_;
}

bool Stream::reached(std::uint64_t position) const {
  std::lock_guard lock(mutex_);
  return completed_ >= position;
}

bool Stream::advance(std::uint64_t position, long& budget) {
  std::unique_lock lock(mutex_);
  if (completed_ >= position) return true;
  if (advancing_) return false;
  advancing_ = true;
  while (completed_ < position && budget > 0) {
    Task& task = *queue_.front();
    lock.unlock();
    // advancing_ stays set meanwhile: no other thread takes the front task, and a circle of waits ends here.
    bool done = task.run();
    if (!done) {
      for (const StreamPoint& point : task.waits_for()) point.stream->advance(point.position, budget);
      done = budget > 0 && task.run();
    }
    lock.lock();
    if (!done) break;
    --budget;
    std::unique_ptr<Task> finished = std::move(queue_.front());
    queue_.pop_front();
    ++completed_;
    lock.unlock();
    finished.reset();
    announce_progress();
    lock.lock();
  }
  advancing_ = false;
  const bool there = completed_ >= position;
  lock.unlock();
  return there;
}

StreamPoint enqueue(const std::shared_ptr<Stream>& stream, std::unique_ptr<Task> task, std::vector<StreamPoint> after) {
  for (StreamPoint& point : implicit_order(*stream)) after.push_back(std::move(point));
  if (!after.empty()) task = std::make_unique<OrderedTask>(std::move(after), std::move(task));
  StreamPoint point{stream, Stream::push(stream, std::move(task))};
  if (!settings().lazy_streams) {
    long budget = std::numeric_limits<long>::max();
    stream->advance(point.position, budget);
  }
  return point;
}

StreamPoint enqueue(const std::shared_ptr<Stream>& stream, std::function<void()> work) {
  return enqueue(stream, std::make_unique<FunctionTask>(std::move(work)));
}

void enqueue_wait(const std::shared_ptr<Stream>& stream, const StreamPoint& point) {
  if (point.stream != stream) enqueue(stream, std::make_unique<WaitTask>(point));
}

void wait_for(const StreamPoint& point) {
  for (;;) {
    const std::uint64_t before = board().finished;
    long budget = std::numeric_limits<long>::max();
    if (point.stream->advance(point.position, budget)) return;
    // Another thread is at it, or other ranks have to come. The time limit is for tasks that look at the clock.
    std::unique_lock lock(board().mutex);
    ++board().sleepers;
    board().moved.wait_for(lock, std::chrono::milliseconds(2), [&] { return board().finished != before; });
    --board().sleepers;
  }
}

bool advance_a_little(const StreamPoint& point) {
  long budget = settings().lazy_streams ? 1 : std::numeric_limits<long>::max();
  return point.stream->advance(point.position, budget);
}

bool Patience::exhausted(double seconds) {
  constexpr double longest_gap = 0.05;
  const auto now = std::chrono::steady_clock::now();
  const std::uint64_t finished = board().finished;
  if (finished != finished_ || board().running > 0 || last_ == std::chrono::steady_clock::time_point{}) {
    waited_ = 0;
  } else {
    waited_ += std::min(longest_gap, std::chrono::duration<double>(now - last_).count());
  }
  finished_ = finished;
  last_ = now;
  return waited_ > seconds;
}

void announce_progress() {
  ++board().finished;
  if (board().sleepers == 0) return;
  { std::lock_guard lock(board().mutex); }
  board().moved.notify_all();
}

}  // namespace simulated_cuda
