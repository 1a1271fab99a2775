// This process as one rank of an MPI job: start, end, and what happens when a rank dies in between.
// defines: MpiJob, host_name()
#pragma once

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/comm/mpi/host_board.h"

namespace escalera {

/// Initialises MPI and watches over the ranks of this host until finish(). All communicators of the process refer to it.
class MpiJob {
 public:
  /// Throws Error if MPI cannot be used from several threads at once.
  MpiJob();
  /// Finalises MPI if finish() was not called.
  ~MpiJob();
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// All ranks; ours alone.
  MPI_Comm world() const { return world_; }
  /// A number for the host that this rank runs on.
  int host() const { return host_; }
  /// Looks at ESCALERA_COMM_PATH. Throws UsageError if it makes no sense.
  void read_environment();
  /// Whether groups within a host use shared memory; ESCALERA_COMM_PATH=mpi turns it off.
  bool uses_shared_memory() const { return uses_shared_memory_; }
  /// Whether this host has more ranks than cores for them.
  bool crowded() const { return crowded_; }
  HostBoard& board() { return *board_; }

  /// Makes what waits in this process throw PeerError soon: an exception is on its way to launch(), which ends the job.
  void give_up() { given_up_ = true; }
  void check_not_given_up() const;

  /// Prints `message`, if no other rank of this host has said why the job ends, and ends all ranks with `code`.
  [[noreturn]] void end_all(const std::string& message, int code);

  /// For a rank that has thrown UsageError: true if all ranks have, within a short time.
  bool all_ranks_refuse();

  /// Ends this rank in good order, together with all others.
  void finish();

 private:
  void watch();

  int rank_ = 0;
  int size_ = 1;
  MPI_Comm world_ = MPI_COMM_NULL;
  MPI_Comm farewell_ = MPI_COMM_NULL;  // for all_ranks_refuse() alone
  int host_ = 0;
  bool crowded_ = false;
  bool uses_shared_memory_ = true;
  std::unique_ptr<HostBoard> board_;
  std::atomic<bool> given_up_ = false;
  bool finished_ = false;

  std::mutex mutex_;
  std::condition_variable stop_changed_;
  bool stop_ = false;
  std::thread watcher_;
};

}  // namespace escalera
