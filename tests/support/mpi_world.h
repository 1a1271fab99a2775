// What a *_mpi_test.cpp file may ask for: the communicator of all ranks that mpirun started.
// defines: test_world()
#pragma once

#include "common/comm/communicator.h"

namespace escalera {

/// The world of the running MPI test program; valid inside tests only. Every rank runs the same tests in the
/// same order, so collectives in a test meet each other. A rank must not return early from a test while
/// others still communicate.
Communicator& test_world();

}  // namespace escalera
