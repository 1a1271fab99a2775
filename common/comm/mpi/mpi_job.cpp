#include "common/comm/mpi/mpi_job.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "common/comm/mpi/mpi_check.h"
#include "common/core/error.h"

namespace escalera {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Signal handlers can reach nothing but globals; this one is set here and read by the watcher.
volatile sig_atomic_t termination_requested = 0;

void note_termination(int) {
  termination_requested = 1;
}

/// Where nobody else handles SIGTERM, it must not kill us at once: mpirun sends it to the survivors as soon as a rank has
/// died, and one of them has to say which. A program's own handler, installed later, takes the place of this one.
void hold_back_termination() {
  struct sigaction action {};
  sigaction(SIGTERM, nullptr, &action);
  if (action.sa_handler != SIG_DFL) return;
  action.sa_handler = note_termination;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

MpiJob::MpiJob() {
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
    fail("MPI_Init_thread failed");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // inherited by all that come from it
  require(provided == MPI_THREAD_MULTIPLE,
          "this MPI does not allow calls from several threads at once (MPI_THREAD_MULTIPLE); operations that "
          "run beside "
          "the computation need it. Use an MPI built with it, such as Debian's Open MPI");
  MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &world_));
  MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &farewell_));
  MPI_CHECK(MPI_Comm_rank(world_, &rank_));
  MPI_CHECK(MPI_Comm_size(world_, &size_));

  MPI_Comm ranks_here = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_split_type(world_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &ranks_here));
  host_ = rank_;  // the lowest rank of a host lends it its number
  MPI_CHECK(MPI_Bcast(&host_, 1, MPI_INT, 0, ranks_here));
  int ranks = 0;
  MPI_CHECK(MPI_Comm_size(ranks_here, &ranks));
  crowded_ = static_cast<unsigned>(ranks) > std::thread::hardware_concurrency();
  board_ = std::make_unique<HostBoard>(ranks_here, rank_);
  MPI_CHECK(MPI_Comm_free(&ranks_here));

  hold_back_termination();
  watcher_ = std::thread([this] { watch(); });
}

void MpiJob::read_environment() {
  const char* path = std::getenv("ESCALERA_COMM_PATH");
  const std::string_view chosen = path ? path : "";
  require<UsageError>(
      chosen.empty() || chosen == "mpi" || chosen == "shared",
      "ESCALERA_COMM_PATH is \"{}\"; it can be \"shared\" (shared memory within a host, the default) or "
      "\"mpi\" (MPI for everything)",
      chosen);
  uses_shared_memory_ = chosen != "mpi";
}

void MpiJob::check_not_given_up() const {
  if (given_up_) throw PeerError("this rank has failed");
}

// Ten times a second: is everyone still there? A rank that waits for a dead one cannot say so itself, wherever it waits.
void MpiJob::watch() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals interrupt the rank, not its watcher
  int rounds_after_termination = 0;
  std::unique_lock lock(mutex_);
  while (!stop_changed_.wait_for(lock, milliseconds(100), [&] { return stop_; })) {
    if (const auto dead = board_->find_dead_rank()) end_all(*dead + "; stopping the job", 1);
    // A request to terminate without a death is meant for this rank.
    if (termination_requested && ++rounds_after_termination > 5) {
      signal(SIGTERM, SIG_DFL);
      kill(getpid(), SIGTERM);
    }
  }
}

void MpiJob::end_all(const std::string& message, int code) {
  std::fflush(stdout);
  if (board_->claim_last_word()) {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::fflush(stderr);
  } else {
    // Let the one who spoke end the job, with its exit code; but do not rely on it.
    std::this_thread::sleep_for(std::chrono::seconds(5));
  }
  MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code);
}

bool MpiJob::all_ranks_refuse() {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(farewell_, &request) != MPI_SUCCESS) return false;
  const auto deadline = steady_clock::now() + std::chrono::seconds(3);
  int done = 0;
  while (steady_clock::now() < deadline) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (done) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

void MpiJob::finish() {
  if (finished_) return;
  finished_ = true;
  board_->set_finished();
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  watcher_.join();
  board_.reset();
  MPI_Finalize();
}

MpiJob::~MpiJob() {
  finish();
}

}  // namespace escalera
