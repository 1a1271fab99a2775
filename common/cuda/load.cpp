// Opens the CUDA library.
#include <dlfcn.h>

#include <filesystem>

#include "common/cuda/cuda_backend.h"

namespace escalera {
namespace {

// In build/<preset>/lib, while programs are in build/<preset>/bin: the pair may be moved together.
std::filesystem::path build_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
}

CudaSearch search() {
  const std::string path = build_folder() / "lib" / "libescalera_cuda.so";
  if (!std::filesystem::exists(path)) {
    return {nullptr, fmt::format("there is no {}; build it: cmake --build {} --target escalera_cuda", path,
                                 build_folder().string())};
  }
  // Never closed: objects of its classes may live until the program ends.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    return {nullptr, fmt::format("the CUDA library cannot be loaded ({}); it needs the CUDA {} runtime, cuBLASLt and NCCL of "
                                 "the toolkit it was built with where the loader finds them (LD_LIBRARY_PATH)",
                                 dlerror(), ESCALERA_CUDA_VERSION)};
  }
  const auto entry = reinterpret_cast<CudaBackend* (*)()>(dlsym(library, "escalera_cuda_backend"));
  if (!entry) return {nullptr, fmt::format("{} is not Escalera's CUDA library: {}", path, dlerror())};
  CudaBackend& backend = *entry();
  if (backend.device_count() == 0) return {nullptr, backend.why_no_device()};
  return {&backend, {}};
}

}  // namespace

const CudaSearch& find_cuda() {
  static const CudaSearch found = search();
  return found;
}

}  // namespace escalera
