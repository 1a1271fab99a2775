// The two ways to run a body on ranks, for launch() only.
// defines: run_on_threads(), run_on_mpi(), under_mpi_launcher()
#pragma once

#include <functional>

#include "common/comm/communicator.h"

namespace escalera {

/// launch() with CommKind::threads (threads/thread_launch.cpp).
int run_on_threads(int ranks, const std::function<void(Communicator& world)>& body);

/// launch() with CommKind::mpi in a process that a launcher started (mpi/mpi_launch.cpp, or no_mpi.cpp).
int run_on_mpi(const std::function<void(Communicator& world)>& body);

/// Whether mpirun or a relative of it started this process.
bool under_mpi_launcher();

}  // namespace escalera
