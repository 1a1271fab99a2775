// Stands in for NCCL where the CUDA toolkit came without it.
#include "common/comm/nccl/nccl_communicator.h"

namespace escalera::cuda {

std::unique_ptr<Communicator> make_nccl_communicator(Communicator&, CudaDevice&) {
  throw UsageError(
      "this build has no NCCL: there was no nccl.h, or no libnccl, beside the CUDA toolkit. Install NCCL and configure "
      "again, or use --comm mpi (--comm threads where ranks are threads), which goes through host memory");
}

}  // namespace escalera::cuda
