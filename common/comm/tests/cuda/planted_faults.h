// Faults planted beneath the communicators: this program's own definitions of two functions of the CUDA runtime and of NCCL
// stand before the libraries' and call them, most of the time.
// defines: Fault, PlantedFault
#pragma once

#include <cuda_runtime.h>

namespace escalera::cuda {

/// What goes wrong.
enum class Fault {
  none,
  results_not_awaited,  ///< the compute stream does not wait for the communicator's streams
  inputs_not_awaited,   ///< the communicator's streams do not wait for the compute stream
  nccl_error,           ///< NCCL reports an error on its own time
};

/// Goes wrong in what this thread calls, until the object's end.
class PlantedFault {
 public:
  PlantedFault(Fault fault, cudaStream_t compute);
  ~PlantedFault();
  PlantedFault(const PlantedFault&) = delete;
  PlantedFault& operator=(const PlantedFault&) = delete;
};

}  // namespace escalera::cuda
