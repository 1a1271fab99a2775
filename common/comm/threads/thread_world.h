// What the rank threads of one process share beside their groups: whether the job has failed, what each rank is doing, and
// who has spoken about it.
// defines: ThreadWorld, ThreadGroup
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace escalera {

class ThreadGroup;

/// One per launch. Thread-safe.
class ThreadWorld {
 public:
  explicit ThreadWorld(int ranks) : phases_(static_cast<std::size_t>(ranks)) {}

  /// Makes every rank that waits, or will wait, throw PeerError.
  void fail();
  bool failed() const { return failed_; }

  void set_phase(int rank, const std::string& phase);
  /// `rank 2, phase "step 12, backward"`, or `rank 2` before the first phase.
  std::string describe_rank(int rank) const;

  /// Prints `text` to stderr unless the same `key` was printed before: what fails on all ranks alike is said once.
  void say_once(const std::string& key, const std::string& text);

  /// A group's waiting ranks are woken by fail().
  void add(ThreadGroup* group);
  void remove(ThreadGroup* group);

 private:
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::vector<std::string> phases_;
  std::set<std::string> said_;
  std::set<ThreadGroup*> groups_;
};

}  // namespace escalera
