// Runs a body as one rank of an MPI job.
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "common/comm/backends.h"
#include "common/comm/mpi/mpi_check.h"
#include "common/comm/mpi/mpi_communicator.h"

namespace escalera {
namespace {

/// The job, or nothing if it could not be started, after saying why.
std::shared_ptr<MpiJob> start_job() {
  try {
    return std::make_shared<MpiJob>();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized) MPI_Abort(MPI_COMM_WORLD, 1);
    return nullptr;
  }
}

int refuse(MpiJob& job, const UsageError& error) {
  if (!job.all_ranks_refuse()) job.end_all(error.what(), 2);
  if (job.rank() == 0) std::fprintf(stderr, "%s\n", error.what());
  return 2;
}

int run_rank(const std::shared_ptr<MpiJob>& job, const std::function<void(Communicator& world)>& body) {
  const auto fail_with = [&](const char* message) {
    job->end_all(fmt::format("{}: {}", job->board().describe_self(), message), 1);
  };
  try {
    job->read_environment();
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_CHECK(MPI_Comm_dup(job->world(), &comm));
    MpiCommunicator world(job, comm, job->rank(), job->size(), "world");
    body(world);
    return 0;
  } catch (const UsageError& error) {
    return refuse(*job, error);
  } catch (const PeerError& error) {
    // Another rank has failed and is about to say why and end all; this one only speaks if that never comes.
    std::this_thread::sleep_for(std::chrono::seconds(5));
    fail_with(error.what());
  } catch (const std::exception& error) {
    fail_with(error.what());
  } catch (...) {
    fail_with("unknown exception");
  }
  return 1;
}

}  // namespace

int run_on_mpi(const std::function<void(Communicator& world)>& body) {
  const auto job = start_job();
  if (!job) return 1;
  const int code = run_rank(job, body);
  job->finish();
  return code;
}

}  // namespace escalera
