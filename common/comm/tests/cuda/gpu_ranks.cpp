#include "common/comm/tests/cuda/gpu_ranks.h"

#include "common/comm/nccl/nccl_communicator.h"
#include "common/comm/staged/staged_communicator.h"
#include "common/comm/tests/collective_checks.h"

namespace escalera::cuda {

std::string to_string(Carrier carrier) {
  switch (carrier) {
    case Carrier::staged:
      return "Staged";
    case Carrier::small_pieces:
      return "StagedInSmallPieces";
    case Carrier::nccl:
      return "Nccl";
  }
  return "?";
}

bool enough_devices(Carrier carrier, int ranks) {
  int devices = 0;
  cudaGetDeviceCount(&devices);
  return devices >= (carrier == Carrier::nccl ? ranks : 1);
}

std::unique_ptr<Communicator> make_carrier(Carrier carrier, Communicator& world, CudaDevice& device) {
  if (carrier == Carrier::nccl) return make_nccl_communicator(world, device);
  constexpr Index small = 4096;
  return make_staged_communicator(world, device, carrier == Carrier::small_pieces ? small : usual_piece_bytes);
}

void run_gpu_ranks(Carrier carrier, int ranks, const std::function<void(Communicator& tensors, CudaDevice& device)>& body,
                   int expected_code) {
  run_ranks(
      ranks,
      [&](Communicator& world) {
        CudaDevice device(carrier == Carrier::nccl ? world.rank() : 0);
        const auto tensors = make_carrier(carrier, world, device);
        body(*tensors, device);
      },
      expected_code);
}

}  // namespace escalera::cuda
