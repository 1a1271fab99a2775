#include "common/comm/launch.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "common/comm/backends.h"

namespace escalera {

int launch(const LaunchOptions& options, const std::function<void(Communicator& world)>& body) {
  if (options.kind == CommKind::threads) return run_on_threads(options.ranks, body);
  // Without a launcher there is one rank, and MPI has nothing to do.
  return under_mpi_launcher() ? run_on_mpi(body) : run_on_threads(1, body);
}

void set_phase(Communicator& world, const std::string& phase) {
  world.note_phase(phase);
}

namespace {

int number_in_environment(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text) return 0;
  int number = 0;
  const std::string_view view(text);
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), number);
  return error == std::errc() && end == view.data() + view.size() ? number : 0;
}

}  // namespace

int launched_world_size() {
  // Open MPI's mpirun; MPICH's and Intel MPI's; Flux; srun (which also sets variables for a mere allocation, so we ask for
  // the size of the step, and only within a task).
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "FLUX_JOB_SIZE"}) {
    if (const int size = number_in_environment(variable); size > 0) return size;
  }
  if (std::getenv("SLURM_PROCID")) {
    for (const char* variable : {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) {
      if (const int size = number_in_environment(variable); size > 0) return size;
    }
  }
  return 1;
}

bool under_mpi_launcher() {
  for (const char* variable :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "FLUX_JOB_SIZE"}) {
    if (std::getenv(variable)) return true;
  }
  return std::getenv("SLURM_PROCID") && launched_world_size() > 1;
}

}  // namespace escalera
