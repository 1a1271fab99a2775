// Stands in for the CUDA backend where it was not built.
#include "common/ops/ops.h"

namespace escalera {

std::unique_ptr<Ops> make_cuda_ops(int) {
  fail<UsageError>(
      "--device cuda: this build has no CUDA backend, and this version of the project does not bring one; use --device cpu");
}

}  // namespace escalera
