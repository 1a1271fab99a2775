// The CUDA library's one exported function.
#include <cuda_runtime.h>

#include "common/comm/nccl/nccl_communicator.h"
#include "common/comm/staged/staged_communicator.h"
#include "common/core/cuda/cuda_device.h"
#include "common/cuda/cuda_backend.h"
#include "common/ops/cuda/attention/attention.h"
#include "common/ops/cuda/cuda_ops.h"

namespace escalera::cuda {
namespace {

CudaDevice& device_of(Ops& ops) { return dynamic_cast<CudaDevice&>(ops.device()); }

class Backend final : public CudaBackend {
 public:
  int device_count() override {
    int devices = 0;  // stays as it is where there is no driver
    if (cudaGetDeviceCount(&devices) != cudaSuccess) {
      cudaGetLastError();
      return 0;
    }
    return devices;
  }

  std::string why_no_device() override {
    int devices = 0, driver = 0, runtime = 0;
    const cudaError_t code = cudaGetDeviceCount(&devices);
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    const auto version = [](int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); };
    if (driver == 0) {
      return fmt::format("no NVIDIA driver is installed here (CUDA {} asks for one); use --device cpu, or the preset simulated",
                         version(runtime));
    }
    if (code == cudaErrorInsufficientDriver) {
      return fmt::format("the NVIDIA driver serves CUDA {} and this build needs {}; update the driver, or build with an older "
                         "toolkit",
                         version(driver), version(runtime));
    }
    if (is_simulated()) return "no GPU is visible: SIMULATED_CUDA_DEVICES is 0";
    return fmt::format("no GPU is visible ({}); CUDA_VISIBLE_DEVICES hides those it does not name", cudaGetErrorString(code));
  }

  bool is_simulated() override { return ESCALERA_CUDA_IS_SIMULATED; }

  Index largest_head_size() override { return cuda::largest_head_size; }

  Index device_memory(int ordinal) override {
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDeviceProperties(&properties, ordinal));
    return static_cast<Index>(properties.totalGlobalMem);
  }

  std::unique_ptr<Ops> make_ops(int ordinal) override { return cuda::make_ops(ordinal); }

  std::unique_ptr<Communicator> make_staged_communicator(Communicator& world, Ops& ops) override {
    return cuda::make_staged_communicator(world, device_of(ops));
  }

  std::unique_ptr<Communicator> make_nccl_communicator(Communicator& world, Ops& ops) override {
    return cuda::make_nccl_communicator(world, device_of(ops));
  }
};

}  // namespace
}  // namespace escalera::cuda

extern "C" escalera::CudaBackend* escalera_cuda_backend() {
  static escalera::cuda::Backend backend;
  return &backend;
}
