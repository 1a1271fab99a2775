// How a program becomes ranks.
// defines: LaunchOptions, launch(), CommKind
#pragma once

#include <functional>
#include <string>

#include "common/comm/communicator.h"

namespace escalera {

/// Which backend carries the world communicator.
enum class CommKind {
  mpi,      ///< one process per rank, started by mpirun; shared-memory fast path within a host
  threads,  ///< ranks are threads of this process
};

/// What launch() needs to know before any rank exists.
struct LaunchOptions {
  CommKind kind = CommKind::mpi;  ///< who starts the ranks
  int ranks = 1;                  ///< with threads: the world size. With mpi the launcher decides.
};

/// Runs `body(world)` on every rank and returns the exit code of this process: 0, or 2 for a UsageError, or 1 for any
/// other exception. With mpi the caller's process is one rank; with threads all ranks run here, and the number of compute
/// threads per rank must be 1. A UsageError that every rank throws is printed once, by rank 0; any other failure is
/// printed by the rank it happened on, with its number and phase, and ends the whole job. Initialises and finalises MPI.
int launch(const LaunchOptions& options, const std::function<void(Communicator& world)>& body);

/// What this rank is doing, for messages about a rank that has died: "step 12, backward". Cheap; call it once a phase.
void set_phase(Communicator& world, const std::string& phase);

/// World size as the launcher (mpirun, srun) announces it to this process, before MPI is initialised; 1 without a launcher.
int launched_world_size();

}  // namespace escalera
