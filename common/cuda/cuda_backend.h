// The door to the CUDA library: one shared library with kernels, cuBLASLt and NCCL, opened only when a GPU is asked for, so that
// the same trainer starts where neither CUDA nor a driver is installed.
// defines: CudaBackend, CudaSearch, find_cuda(), cuda_backend(), machine_has_gpu()
#pragma once

#include <memory>
#include <string>

#include "common/comm/communicator.h"
#include "common/ops/ops.h"

namespace escalera {

/// What the library offers. Its one exported function, escalera_cuda_backend(), returns the only object.
class CudaBackend {
 public:
  /// Devices that this process may use; 0 without a driver or GPU.
  virtual int device_count() = 0;
  /// Why device_count() is 0, in a sentence.
  virtual std::string why_no_device() = 0;
  /// Whether devices are simulated by the CPU. Their NCCL connects threads of one process only.
  virtual bool is_simulated() = 0;
  /// The most columns that a head of attention may have.
  virtual Index largest_head_size() = 0;
  /// Bytes that device `ordinal` has in all.
  virtual Index device_memory(int ordinal) = 0;
  /// Operations on device `ordinal`, whose Device they own.
  virtual std::unique_ptr<Ops> make_ops(int ordinal) = 0;
  /// Collectives on tensors of `ops`' device through pinned host buffers and a copy of `world`, which may be of any kind; several
  /// ranks may share a device. Collective. `ops` and what carries `world` must outlive it.
  virtual std::unique_ptr<Communicator> make_staged_communicator(Communicator& world, Ops& ops) = 0;
  /// The same through NCCL, each rank on a device of its own; `world` carries the unique id and control messages. Throws
  /// UsageError, naming them, if two ranks of a host share a device.
  virtual std::unique_ptr<Communicator> make_nccl_communicator(Communicator& world, Ops& ops) = 0;

 protected:
  ~CudaBackend() = default;
};

/// The library, or what is missing.
struct CudaSearch {
  CudaBackend* backend = nullptr;  ///< null if it cannot be used here
  std::string missing;             ///< then: what is missing and how to get it
};

/// Looks for the library beside the program and for a device, once. Thread-safe.
const CudaSearch& find_cuda();

/// The library; throws UsageError with what is missing.
CudaBackend& cuda_backend();

/// Whether this machine shows an NVIDIA driver to this process. Opens no library.
bool machine_has_gpu();

}  // namespace escalera
