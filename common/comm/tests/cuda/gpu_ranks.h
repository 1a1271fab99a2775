// Ranks with a GPU, as threads of the test program.
// defines: Carrier, run_gpu_ranks(), enough_devices()
#pragma once

#include <functional>
#include <string>

#include "common/comm/communicator.h"
#include "common/core/cuda/cuda_device.h"

namespace escalera::cuda {

/// What carries tensors between the ranks of a test.
enum class Carrier {
  staged,        ///< host memory; all ranks on device 0
  small_pieces,  ///< the same with so little of it that most buffers go in pieces
  nccl,          ///< NCCL; each rank on a device of its own
};
std::string to_string(Carrier carrier);

/// Whether the devices here suffice for that many ranks.
bool enough_devices(Carrier carrier, int ranks);

/// The communicator of `world`'s ranks for tensors of `device`.
std::unique_ptr<Communicator> make_carrier(Carrier carrier, Communicator& world, CudaDevice& device);

/// Runs `body` on `ranks` threads, each with its device; expects exit code `expected_code`.
void run_gpu_ranks(Carrier carrier, int ranks, const std::function<void(Communicator& tensors, CudaDevice& device)>& body,
                   int expected_code = 0);

}  // namespace escalera::cuda
