#include "common/comm/operation_queue.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace escalera {

// Shared with the Works that were handed out, which may outlive the queue.
struct OperationQueue::State {
  struct Item {
    std::function<void()> operation;
    bool done = false;
    std::exception_ptr error;
  };

  std::function<void()> give_up;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Item>> waiting;
  bool running = false;
  bool stopping = false;
  std::exception_ptr error;  // the first that an operation threw
  std::thread thread;

  /// Runs without the lock; returns with it.
  void execute(Item& item, std::unique_lock<std::mutex>& lock) {
    running = true;
    std::exception_ptr thrown = error;
    if (!thrown) {
      lock.unlock();
      try {
        item.operation();
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
    }
    item.operation = nullptr;
    item.error = error = thrown;
    item.done = true;
    running = false;
    changed.notify_all();
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || (!running && !waiting.empty()); });
      if (waiting.empty()) return;
      const auto item = waiting.front();
      waiting.pop_front();
      execute(*item, lock);
    }
  }

  void wait(Item& item) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return item.done; });
    if (item.error) std::rethrow_exception(item.error);
  }
};

OperationQueue::OperationQueue(std::function<void()> give_up) : state_(std::make_shared<State>()) {
  state_->give_up = std::move(give_up);
}

void OperationQueue::finish() {
  std::unique_lock lock(state_->mutex);
  if (!state_->thread.joinable()) return;
  if (std::uncaught_exceptions() > 0 && (state_->running || !state_->waiting.empty())) state_->give_up();
  state_->stopping = true;
  state_->changed.notify_all();
  lock.unlock();
  state_->thread.join();
}

Work OperationQueue::submit(std::function<void()> operation, bool blocking) {
  auto item = std::make_shared<State::Item>();
  item->operation = std::move(operation);
  std::unique_lock lock(state_->mutex);
  if (blocking && !state_->running && state_->waiting.empty()) {
    state_->execute(*item, lock);
    if (item->error) std::rethrow_exception(item->error);
    return {};
  }
  state_->waiting.push_back(item);
  if (!state_->thread.joinable()) state_->thread = std::thread([state = state_.get()] { state->serve(); });
  state_->changed.notify_all();
  return Work([state = state_, item] { state->wait(*item); }, state_->give_up);
}

}  // namespace escalera
