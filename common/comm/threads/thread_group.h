// Where the threads of one group of ranks meet: a barrier that compares what they came for, and mailboxes for transfers.
// defines: ThreadGroup
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/comm/call_summary.h"
#include "common/comm/threads/thread_world.h"

namespace escalera {

/// Shared by the communicators of one group, one per rank. Ranks read each other's buffers directly: between begin() and
/// finish() every rank's call, and so its memory, stays.
class ThreadGroup {
 public:
  /// `world_ranks` says who the group's ranks are in the whole job.
  ThreadGroup(std::shared_ptr<ThreadWorld> world, std::vector<int> world_ranks, std::string name);
  ~ThreadGroup();

  ThreadWorld& world() { return *world_; }
  const std::shared_ptr<ThreadWorld>& shared_world() const { return world_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  int world_rank(int rank) const { return world_ranks_[static_cast<std::size_t>(rank)]; }
  const std::string& name() const { return name_; }

  // ---- Collectives: begin, read the others' buffers, meet as often as needed, finish ----

  /// Says that begin() will follow, perhaps from another thread.
  void announce(int rank);
  /// Waits for all ranks. Throws Error, on all of them, if their calls do not fit together; on this one, if another can
  /// never come because it has left, or waits for a message that this rank cannot send while it is here; PeerError if the
  /// job has failed.
  void begin(int rank, const Call& call);
  /// What `rank` came for; between begin() and finish().
  const Call& call(int rank) const { return *calls_[static_cast<std::size_t>(rank)]; }
  /// Waits for all ranks. Never throws: who has come through begin() only copies and adds, and comes here for sure. If a
  /// failed job could end this wait, a rank might free memory that another still reads.
  void meet();

  // ---- Transfers ----

  /// The transfers of one exchange on one rank.
  struct Batch {
    int rank = 0;
    int queued = 0;   ///< transfers that wait for their counterpart
    int copying = 0;  ///< transfers that a rank is copying right now
    std::optional<std::string> error;
    std::condition_variable changed;
    Trace* trace = nullptr;
    TraceEvent span;
  };
  /// Offers all transfers at once. Those whose counterpart is there already are copied here and now, by this rank; the
  /// others will be copied by the rank that comes later.
  std::shared_ptr<Batch> post(int rank, const Call& call, Trace* trace);
  /// Waits for the end of all transfers of the batch; throws like begin().
  void wait(Batch& batch);

  // ---- The end ----

  /// This rank will call nothing any more.
  void leave(int rank);
  /// Makes all waiting ranks look at the state of the world again.
  void wake();

  /// For split(): a place where each rank leaves something for the others; used between begin() and finish().
  struct SplitRequest {
    int color = 0, key = 0;
    std::shared_ptr<ThreadGroup> group;  // made by the first rank of each color
  };
  std::vector<SplitRequest>& split_requests() { return split_requests_; }

 private:
  struct Transfer {
    std::shared_ptr<Batch> batch;
    BufferView buffer;
    bool is_send = false;
  };
  using Edge = std::pair<int, int>;  // sender, receiver

  /// Where a rank is, beside the calls that it made.
  struct RankState {
    int announced = 0;                 // collectives that it will still come for
    std::uint64_t arrived_for = 0;     // the last generation that it came for
    const Batch* waits_for = nullptr;  // what its own thread waits for
    bool left = false;
  };

  std::optional<std::string> find_mismatch() const;
  std::optional<std::string> find_hopeless(int rank, const Call& call) const;
  void withdraw(Batch& batch);
  void complete(Batch& batch);
  const Transfer* find_queued(const Batch& batch, const std::function<bool(int peer)>& wanted,
                              int& peer) const;
  std::string describe(const Transfer& transfer, int peer) const;

  std::shared_ptr<ThreadWorld> world_;
  std::vector<int> world_ranks_;
  std::string name_;

  std::mutex mutex_;  // for all below
  std::condition_variable arrived_;
  std::vector<const Call*> calls_;
  int arrivals_ = 0;
  std::uint64_t generation_ = 1;
  std::optional<std::string> mismatch_;  // of the present generation
  bool broken_ = false;                  // a rank gave up waiting, so nobody may be waited for any more
  std::vector<RankState> states_;
  std::vector<SplitRequest> split_requests_;
  std::map<Edge, std::deque<Transfer>> mail_;  // per edge either sends or receives
};

}  // namespace escalera
