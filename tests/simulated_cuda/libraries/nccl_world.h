// What the ranks of one NCCL communicator share: who they are, and the meetings in which their calls find each other.
// defines: NcclMeetingPlace, NcclSeat, NcclWorld
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/simulated_cuda/libraries/nccl_operation.h"
#include "tests/simulated_cuda/runtime/stream.h"

namespace simulated_cuda {

/// Where calls meet: the n-th collective of all ranks, or the n-th transfer from one rank to another.
struct NcclMeetingPlace {
  int sender = -1, receiver = -1;  // of a transfer
  std::uint64_t number = 0;
  auto operator<=>(const NcclMeetingPlace&) const = default;
};

/// A rank's place there.
struct NcclSeat {
  NcclMeetingPlace place;
  std::size_t number = 0;  // of a collective: the rank; of a transfer: 0 for the sender, 1 for the receiver
};

class NcclWorld {
 public:
  explicit NcclWorld(int size);

  int size() const { return size_; }

  // ---- Making it: every rank joins, then the verdict is known ----

  /// False if this rank is there already.
  bool join(int rank, int device);
  /// ncclInProgress until all have joined; then ncclSuccess, or ncclInvalidUsage with `reason`.
  ncclResult_t verdict(std::string& reason) const;
  std::string missing_ranks() const;
  /// The rank calls nothing any more. If it `withdraws`, what it has called and is not done will never be.
  void leave(int rank, bool withdraws);

  // ---- Calls ----

  /// A rank has called something. Reports a call that does not fit to what other ranks have called.
  NcclSeat announce(int rank, const std::shared_ptr<NcclOperation>& operation);
  /// Where in the rank's streams the call is, so that those who wait for it can let the stream move on.
  void locate(const NcclSeat& seat, const StreamPoint& point);
  /// The rank's stream has come to the call; the last to come does the work for all.
  void arrive(const NcclSeat& seat);
  bool is_done(const NcclOperation& operation) const;
  /// What has to move on before the call can be done.
  std::vector<StreamPoint> missing(const NcclSeat& seat) const;
  /// "rank 2 has not called it, rank 3 has, but its stream has not come to it".
  std::string who_is_missing(const NcclSeat& seat) const;

  // ---- Splits ----

  struct SplitRequest {
    bool present = false;
    int color = 0, key = 0, device = 0;
    std::shared_ptr<NcclWorld> world;  // once all are there; null without color
    int rank = 0;
  };
  /// The `number`-th split of this rank.
  void request_split(std::uint64_t number, int rank, int color, int key, int device);
  /// The request with its result, or one that is not `present` while ranks are missing.
  SplitRequest split_result(std::uint64_t number, int rank) const;

 private:
  struct Visitor {
    std::shared_ptr<NcclOperation> operation;  // once called
    StreamPoint point;                         // once located
    bool arrived = false;
  };
  using Meeting = std::vector<Visitor>;  // by seat
  static int rank_at(const NcclMeetingPlace& place, std::size_t seat);

  const int size_;
  mutable std::mutex mutex_;
  std::vector<int> devices_;  // by rank; -1: has not joined
  std::vector<bool> left_, withdrawn_;
  int joined_ = 0;
  std::vector<std::uint64_t> collectives_;                         // called, by rank
  std::map<std::pair<int, int>, std::uint64_t> sends_, receives_;  // called, by sender and receiver
  std::map<NcclMeetingPlace, Meeting> meetings_;
  std::map<std::uint64_t, std::vector<SplitRequest>> splits_;
};

}  // namespace simulated_cuda
