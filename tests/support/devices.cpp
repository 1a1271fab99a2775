#include "tests/support/devices.h"

#include "common/cuda/cuda_backend.h"

namespace escalera {

std::string_view to_string(DevicePath path) { return path == DevicePath::nccl ? "nccl" : "staged"; }

bool has_devices(DevicePath path, int ranks) {
  CudaBackend* backend = find_cuda().backend;
  return backend && (path == DevicePath::staged || ranks <= backend->device_count());
}

int launch_on_devices(int ranks, DevicePath path,
                      const std::function<void(Communicator& world, Communicator& tensors, Ops& ops)>& body) {
  return launch({CommKind::threads, ranks}, [&](Communicator& world) {
    CudaBackend& backend = cuda_backend();
    const std::unique_ptr<Ops> ops = backend.make_ops(path == DevicePath::nccl ? world.rank() : 0);
    const std::unique_ptr<Communicator> tensors = path == DevicePath::nccl ? backend.make_nccl_communicator(world, *ops)
                                                                           : backend.make_staged_communicator(world, *ops);
    body(world, *tensors, *ops);
  });
}

}  // namespace escalera
