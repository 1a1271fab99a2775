// The shared memory of one group of ranks on one host: a place for each rank to show data to the others, and lanes for
// transfers between two ranks.
// defines: Window, Lane
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "common/comm/call_summary.h"
#include "common/comm/mpi/shared_counter.h"
#include "common/comm/mpi/shared_segment.h"

namespace escalera {

class MpiJob;

/// One direction between two ranks: a ring of pieces that the sender fills and the receiver empties.
struct alignas(64) Lane {
  static constexpr std::uint32_t depth = 4;
  struct Piece {
    Index count;  ///< elements of the whole message
    DType dtype;
    Index bytes;  ///< of this piece
  };
  alignas(64) std::atomic<std::uint32_t> filled;
  alignas(64) std::atomic<std::uint32_t> emptied;
  std::array<Piece, depth> pieces;
  // What the receiver expected when a message did not fit; count is one more, so that 0 means that all is well.
  std::atomic<Index> refused_count;
  std::atomic<DType> refused_dtype;
};

/// Ranks walk through collectives in steps. In each step a rank writes what it shows into out(), calls meet(), and reads
/// what the others show from in(). There are two buffers per rank, used in turn: whoever has met in a step has finished
/// reading the step before, so the next step's buffer is free without another meeting.
class Window {
 public:
  /// Collective over `comm`, whose ranks are all on this host.
  Window(MPI_Comm comm, const MpiJob& job, std::string name);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }

  // ---- Collectives: used by one thread at a time ----

  /// The next meet() also compares `call` among the ranks.
  void begin(const Call& call);
  /// This rank's buffer for the coming step, buffer_bytes() large.
  std::byte* out() { return buffer(rank_, step_); }
  /// Shows out() and waits until all ranks have shown theirs. Throws Error, on all ranks, if the calls differ, and if a
  /// rank has left.
  void meet();
  /// What `rank` showed in the last step.
  const std::byte* in(int rank) const { return buffer(rank, step_ - 1); }
  Index buffer_bytes() const { return buffer_bytes_; }

  // ---- Transfers ----

  Lane& lane(int sender, int receiver) { return lanes_[sender * size_ + receiver]; }
  std::byte* piece(int sender, int receiver, std::uint32_t number);
  Index piece_bytes() const { return piece_bytes_; }
  /// Called by the sender before it uses a lane for the first time.
  void reserve_lane(int receiver);
  /// Rung by the others when a lane of `rank` has changed.
  SharedCounter& bell(int rank) { return ranks_[rank].bell; }

  // ---- The end ----

  /// This rank will call nothing any more.
  void leave();
  bool has_left(int rank) const { return ranks_[rank].left; }

 private:
  struct alignas(64) RankState {
    alignas(64) SharedCounter steps;
    alignas(64) SharedCounter bell;
    alignas(64) std::array<CallSummary, 2> calls;
    std::atomic<bool> left;
  };

  std::byte* buffer(int rank, std::uint32_t step) const {
    return buffers_ + (Index{2} * rank + step % 2) * buffer_bytes_;
  }
  void compare_calls() const;

  int rank_ = 0;
  int size_ = 0;
  const MpiJob& job_;
  std::string name_;
  Index buffer_bytes_ = 0;
  Index piece_bytes_ = 0;
  std::unique_ptr<SharedSegment> segment_;
  RankState* ranks_ = nullptr;      // [size]
  Lane* lanes_ = nullptr;           // [size, size]: sender, receiver
  std::byte* buffers_ = nullptr;    // [size, 2, buffer_bytes]
  std::byte* lane_data_ = nullptr;  // [size, size, depth, piece_bytes]

  std::uint32_t step_ = 0;
  CallSummary call_;
  bool compare_ = false;
  bool buffers_reserved_ = false;
};

}  // namespace escalera
