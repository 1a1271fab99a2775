// The compute threads of one rank.
// defines: ThreadPool
#pragma once

#include <functional>
#include <memory>

#include "common/core/dtype.h"

namespace escalera {

/// A fixed team of threads, of which the caller is number 0. Between jobs the others spin briefly and then yield, so that
/// a job starts within a microsecond on a quiet machine and a crowded one is not held up. One pool per rank, never two.
class ThreadPool {
 public:
  /// A team of `threads` >= 1; with 1 everything runs in the caller.
  explicit ThreadPool(int threads);
  ~ThreadPool();

  /// Threads of the team, the caller among them.
  int size() const { return size_; }

  /// Calls body(thread) on every thread of the team at once and returns when all have finished. The first exception, if
  /// any, is thrown again here.
  void run(const std::function<void(int thread)>& body);

  /// Splits [0, count) into one contiguous range per thread, always the same, and calls body(begin, end, thread) for
  /// those that are not empty. Small jobs (count * cost_per_item below a few thousand) run in the caller alone.
  void for_ranges(Index count, Index cost_per_item,
                  const std::function<void(Index begin, Index end, int thread)>& body);

 private:
  struct Team;
  int size_;
  std::unique_ptr<Team> team_;
};

}  // namespace escalera
