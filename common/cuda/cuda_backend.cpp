#include "common/cuda/cuda_backend.h"

#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace escalera {

CudaBackend& cuda_backend() {
  const CudaSearch& found = find_cuda();
  require<UsageError>(found.backend, "--device cuda: {}", found.missing);
  return *found.backend;
}

bool machine_has_gpu() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible && (std::string_view(visible).empty() || std::string_view(visible) == "-1")) return false;
  std::error_code ignored;
  return std::filesystem::exists("/dev/nvidiactl", ignored) || std::filesystem::exists("/dev/dxg", ignored);
}

}  // namespace escalera
