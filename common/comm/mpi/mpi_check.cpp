#include "common/comm/mpi/mpi_check.h"

#include <unistd.h>

#include <array>

#include "common/comm/mpi/backoff.h"
#include "common/comm/mpi/mpi_job.h"

namespace escalera {

void check_mpi(int code, const char* expression, const char* file, int line) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  int rank = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  fail("rank {} on {}: {} failed at {}:{}: {}", rank, host_name(), expression, file, line, text.data());
}

void wait_for(MPI_Request& request, const MpiJob& job) {
  Backoff backoff;
  int done = 0;
  while (true) {
    MPI_CHECK(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done) return;
    job.check_not_given_up();
    backoff.pause_or_sleep(std::chrono::microseconds(50));
  }
}

}  // namespace escalera
