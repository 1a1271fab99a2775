// What the ranks of one host tell each other beside the work: who they are, what they are doing, and who speaks for all.
// defines: HostBoard
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <string>

#include "common/comm/mpi/shared_segment.h"

namespace escalera {

/// A table in shared memory with one line per rank of this host.
class HostBoard {
 public:
  /// Collective over `host`, the ranks of one host.
  HostBoard(MPI_Comm host, int world_rank);

  /// What this rank is doing now. Cheap.
  void set_phase(const std::string& phase);
  /// `rank 2, phase "step 12, backward"`, or `rank 2` before the first phase.
  std::string describe_self() const;

  /// This rank will end soon and in good order.
  void set_finished();

  /// A rank of this host whose process is gone although it had not finished, in words:
  /// `rank 2 (pid 1234 on node7) died in phase "step 12, backward"`.
  std::optional<std::string> find_dead_rank() const;

  /// true for the first caller on this host: it prints the reason why the job ends.
  bool claim_last_word();

 private:
  struct Line {
    std::atomic<int> pid;
    std::atomic<int> finished;
    int world_rank;
    std::atomic<unsigned> phases;  // how many there were; the latest is in text[phases % 2]
    std::array<std::array<char, 128>, 2> text;

    std::string phase() const;
  };
  struct Table {
    std::atomic<int> last_word;
    Line lines[1];
  };

  static std::size_t bytes(int ranks) {
    return sizeof(Table) + static_cast<std::size_t>(ranks) * sizeof(Line);
  }
  Line& line(int rank) const { return table_->lines[rank]; }

  int ranks_ = 0;
  int own_ = 0;
  std::optional<SharedSegment> segment_;
  Table* table_ = nullptr;
};

/// This machine's name.
std::string host_name();

}  // namespace escalera
