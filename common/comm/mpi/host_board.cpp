#include "common/comm/mpi/host_board.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "common/comm/mpi/mpi_check.h"

namespace escalera {

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

HostBoard::HostBoard(MPI_Comm host, int world_rank) {
  MPI_CHECK(MPI_Comm_size(host, &ranks_));
  MPI_CHECK(MPI_Comm_rank(host, &own_));
  segment_.emplace(host, bytes(ranks_), "the table of this host's ranks");
  segment_->reserve(0, segment_->size());
  table_ = reinterpret_cast<Table*>(segment_->data());
  line(own_).world_rank = world_rank;
  line(own_).pid = getpid();
}

void HostBoard::set_phase(const std::string& phase) {
  Line& own = line(own_);
  const unsigned next = own.phases + 1;
  auto& text = own.text[next % 2];
  text[phase.copy(text.data(), text.size() - 1)] = '\0';
  own.phases = next;
}

std::string HostBoard::Line::phase() const {
  return phases == 0 ? "" : text[phases % 2].data();
}

std::string HostBoard::describe_self() const {
  const Line& own = line(own_);
  return own.phases == 0 ? fmt::format("rank {}", own.world_rank)
                         : fmt::format("rank {}, phase \"{}\"", own.world_rank, own.phase());
}

void HostBoard::set_finished() {
  line(own_).finished = 1;
}

std::optional<std::string> HostBoard::find_dead_rank() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const Line& other = line(rank);
    const int pid = other.pid;
    if (rank == own_ || pid == 0 || kill(pid, 0) == 0 || errno != ESRCH) continue;
    if (other.finished) continue;  // looked at last: it is set before the process ends
    const std::string phase = other.phase();
    return fmt::format("rank {} (pid {} on {}) died {}", other.world_rank, pid, host_name(),
                       phase.empty() ? "before its first phase" : fmt::format("in phase \"{}\"", phase));
  }
  return std::nullopt;
}

bool HostBoard::claim_last_word() {
  return table_->last_word.exchange(1) == 0;
}

}  // namespace escalera
