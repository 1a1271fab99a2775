// Stands in for mpi/ where Escalera is built without MPI.
#include <cstdio>

#include "common/comm/backends.h"

namespace escalera {

int run_on_mpi(const std::function<void(Communicator& world)>&) {
  std::fprintf(
      stderr,
      "This program was built without MPI, so mpirun's processes cannot talk to each other. Install Open MPI "
      "(scripts/setup.sh does on Debian and Ubuntu) and configure again with -DESCALERA_MPI=ON, or run "
      "ranks as threads of one process: --comm threads --ranks N.\n");
  return 2;
}

}  // namespace escalera
