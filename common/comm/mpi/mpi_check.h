// The one place where results of MPI calls are looked at.
// defines: MPI_CHECK, wait_for()
#pragma once

#include <mpi.h>

#include "common/core/error.h"

namespace escalera {

class MpiJob;

/// Throws Error with rank, host, expression, place and MPI's own words unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* expression, const char* file, int line);

/// Waits for `request` with little load on a shared processor, which MPI_Wait does not: it polls as long as it takes.
/// Throws PeerError if the job is given up meanwhile.
void wait_for(MPI_Request& request, const MpiJob& job);

}  // namespace escalera

/// Evaluates `call` once. MPI reports errors as codes here (MPI_ERRORS_RETURN) instead of ending the program.
#define MPI_CHECK(call) ::escalera::check_mpi((call), #call, __FILE__, __LINE__)
