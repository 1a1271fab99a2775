// Stands in for load.cpp where the CUDA library is not built.
#include "common/cuda/cuda_backend.h"

namespace escalera {

const CudaSearch& find_cuda() {
  static const CudaSearch none = {
      nullptr,
      "this build has no CUDA backend; with the CUDA toolkit (12.4 or newer) installed, build one: "
      "cmake --preset cuda && cmake --build --preset cuda. Without a GPU, the preset simulated runs the same code on the CPU"};
  return none;
}

}  // namespace escalera
