#include "common/comm/tests/cuda/planted_faults.h"

#include <dlfcn.h>
#include <nccl.h>

namespace escalera::cuda {
namespace {

thread_local Fault planted = Fault::none;
thread_local cudaStream_t compute_stream = nullptr;

/// The library's function of that name.
template <class Function>
Function* original(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

PlantedFault::PlantedFault(Fault fault, cudaStream_t compute) {
  planted = fault;
  compute_stream = compute;
}

PlantedFault::~PlantedFault() {
  planted = Fault::none;
}

}  // namespace escalera::cuda

extern "C" {

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  using namespace escalera::cuda;
  static const auto wait = original<cudaError_t(cudaStream_t, cudaEvent_t, unsigned int)>("cudaStreamWaitEvent");
  const bool is_compute = stream == compute_stream;
  if (planted == Fault::results_not_awaited && is_compute) return cudaSuccess;
  if (planted == Fault::inputs_not_awaited && !is_compute) return cudaSuccess;
  return wait(stream, event, flags);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  using namespace escalera::cuda;
  static const auto get = original<ncclResult_t(ncclComm_t, ncclResult_t*)>("ncclCommGetAsyncError");
  const ncclResult_t code = get(comm, state);
  if (planted == Fault::nccl_error) *state = ncclRemoteError;
  return code;
}

}  // extern "C"
