// Ranks as processes under MPI.
// defines: MpiCommunicator
#pragma once

#include <memory>
#include <string>

#include "common/comm/mpi/mpi_job.h"
#include "common/comm/mpi/plain_collectives.h"
#include "common/comm/mpi/transfer_engine.h"
#include "common/comm/mpi/window.h"
#include "common/comm/operation_queue.h"

namespace escalera {

/// One rank's end of a group. Within a host everything goes through the group's shared window; a group that spans hosts
/// uses MPI's collectives and messages.
class MpiCommunicator final : public Communicator {
 public:
  /// Collective over `comm`, which must be this communicator's alone. It is not freed before the job's end: MPI_Comm_free
  /// is collective, and a destructor that waits for other ranks would hang when one of them has thrown.
  MpiCommunicator(std::shared_ptr<MpiJob> job, MPI_Comm comm, int rank, int size, const std::string& name);
  ~MpiCommunicator() override;

  [[noreturn]] void abort(const std::string& reason) override;
  void check_peers() const override { job_->check_not_given_up(); }
  void give_up() override { job_->give_up(); }

 protected:
  Work start(Call call) override;
  std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name) override;
  void note_phase(const std::string& phase) override { job_->board().set_phase(phase); }

 private:
  void run(const Call& call);

  std::shared_ptr<MpiJob> job_;
  MPI_Comm comm_;
  std::shared_ptr<Window> window_;           // within a host, or else
  std::unique_ptr<PlainCollectives> plain_;  // this
  std::shared_ptr<TransferEngine> transfers_;
  OperationQueue queue_;
};

}  // namespace escalera
