// Host memory that the device's copy engines read and write by themselves.
// defines: PinnedBlock, PinnedPool
#pragma once

#include <memory>
#include <vector>

#include "common/core/cuda/cuda_device.h"

namespace escalera::cuda {

/// Owns page-locked memory, booked as communication in the device's ledger. Made and destroyed on the rank's own thread,
/// because the ledger is the rank's.
class PinnedBlock {
 public:
  PinnedBlock(CudaDevice& device, Index bytes);
  ~PinnedBlock();
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;
  std::byte* data() const { return data_; }
  Index bytes() const { return bytes_; }
  /// Says that work given to `stream` so far still uses the memory.
  void used_by(cudaStream_t stream) { idle_.record(stream); }
  /// Whether that work is done.
  bool idle() const;
  void wait_until_idle() const { CUDA_CHECK(cudaEventSynchronize(idle_.get())); }

 private:
  CudaDevice& device_;
  Index bytes_;
  std::byte* data_ = nullptr;
  Event idle_;
};

/// Blocks that are used again and again, because page-locking is slow. Used on the rank's own thread.
class PinnedPool {
 public:
  explicit PinnedPool(CudaDevice& device) : device_(device) {}
  /// A block of at least `bytes` that nothing uses.
  std::unique_ptr<PinnedBlock> take(Index bytes);
  void put_back(std::unique_ptr<PinnedBlock> block) { free_.push_back(std::move(block)); }

 private:
  CudaDevice& device_;
  std::vector<std::unique_ptr<PinnedBlock>> free_;
};

}  // namespace escalera::cuda
