#include "common/comm/mpi/mpi_communicator.h"

#include <array>
#include <exception>

#include "common/comm/mpi/mpi_check.h"
#include "common/comm/mpi/transfer_paths.h"
#include "common/comm/mpi/window_collectives.h"

namespace escalera {

MpiCommunicator::MpiCommunicator(std::shared_ptr<MpiJob> job, MPI_Comm comm, int rank, int size,
                                 const std::string& name)
    : Communicator(rank, size, name),
      job_(std::move(job)),
      comm_(comm),
      queue_([job = job_] { job->give_up(); }) {
  if (size == 1) return;  // nothing will ever be started
  // On one host if the smallest and the largest host number agree.
  std::array<int, 2> hosts = {job_->host(), -job_->host()};
  MPI_CHECK(MPI_Allreduce(MPI_IN_PLACE, hosts.data(), 2, MPI_INT, MPI_MAX, comm_));
  const bool one_host = hosts[0] == -hosts[1];
  std::unique_ptr<TransferPath> path;
  if (one_host && job_->uses_shared_memory()) {
    window_ = std::make_shared<Window>(comm_, *job_, name);
    path = std::make_unique<WindowPath>(window_);
  } else {
    plain_ = std::make_unique<PlainCollectives>(comm_, *job_, name);
    path = std::make_unique<MpiPath>(comm_, rank, name);
  }
  transfers_ = std::make_shared<TransferEngine>(std::move(path), job_, rank, name);
}

MpiCommunicator::~MpiCommunicator() {
  queue_.finish();
  // Destroyed by an exception: the others must not take this for a rank that has finished its work.
  if (window_ && std::uncaught_exceptions() == 0) window_->leave();
}

void MpiCommunicator::run(const Call& call) {
  TraceSpan span(trace(), name(), call.name(), call.input.bytes());
  window_ ? run_collective(*window_, call) : plain_->run(call);
}

Work MpiCommunicator::start(Call call) {
  const bool blocking = call.blocking;
  if (call.is_transfer()) {
    auto batch = transfers_->post(call, trace());
    return Work([transfers = transfers_, batch] { transfers->wait(*batch); },
                [job = job_] { job->give_up(); });
  }
  return queue_.submit([this, call = std::move(call)] { run(call); }, blocking);
}

std::unique_ptr<Communicator> MpiCommunicator::do_split(int color, int key, const std::string& name) {
  MPI_Comm part = MPI_COMM_NULL;
  int new_rank = 0, new_size = 1;
  const auto split_comm = [&] {
    if (size() > 1) {
      // Otherwise MPI would wait for ever where a rank calls something else.
      Call meeting;
      meeting.operation = Operation::barrier;
      meeting.root = split_root;
      window_ ? run_collective(*window_, meeting) : plain_->run(meeting);
    }
    MPI_CHECK(MPI_Comm_split(comm_, color, key, &part));
    MPI_CHECK(MPI_Comm_rank(part, &new_rank));
    MPI_CHECK(MPI_Comm_size(part, &new_size));
  };
  queue_.submit(split_comm, true)
      .wait();  // behind what is in flight, which may use the same MPI communicator
  return std::make_unique<MpiCommunicator>(job_, part, new_rank, new_size, name);
}

void MpiCommunicator::abort(const std::string& reason) {
  job_->end_all(fmt::format("{}: {}", job_->board().describe_self(), reason), 1);
}

}  // namespace escalera
