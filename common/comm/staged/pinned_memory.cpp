#include "common/comm/staged/pinned_memory.h"

#include <algorithm>

namespace escalera::cuda {

PinnedBlock::PinnedBlock(CudaDevice& device, Index bytes) : device_(device), bytes_(bytes) {
  device_.memory().add(MemoryCategory::communication, bytes_);
  void* memory = nullptr;
  if (bytes_ > 0 && cudaMallocHost(&memory, static_cast<std::size_t>(bytes_)) != cudaSuccess) {
    cudaGetLastError();  // takes the error off the record: the message says it all
    device_.memory().remove(MemoryCategory::communication, bytes_);
    fail(
        "{}: {} bytes of page-locked host memory for communication are not to be had; the limit is often the container's or "
        "that of `ulimit -l`",
        device_.name(), bytes_);
  }
  data_ = static_cast<std::byte*>(memory);
}

PinnedBlock::~PinnedBlock() {
  cudaFreeHost(data_);
  device_.memory().remove(MemoryCategory::communication, bytes_);
}

bool PinnedBlock::idle() const {
  const cudaError_t code = cudaEventQuery(idle_.get());
  if (code != cudaErrorNotReady) CUDA_CHECK(code);
  return code == cudaSuccess;
}

std::unique_ptr<PinnedBlock> PinnedPool::take(Index bytes) {
  constexpr std::ptrdiff_t most_waiting = 4;
  const auto large_enough = [&](const auto& block) { return block->bytes() >= bytes; };
  auto found =
      std::find_if(free_.begin(), free_.end(), [&](const auto& block) { return large_enough(block) && block->idle(); });
  if (found == free_.end() && std::count_if(free_.begin(), free_.end(), large_enough) >= most_waiting) {
    // The device is several messages behind. Rather than page-lock more and more memory we wait for the oldest.
    found = std::find_if(free_.begin(), free_.end(), large_enough);
    (*found)->wait_until_idle();
  }
  if (found == free_.end()) return std::make_unique<PinnedBlock>(device_, bytes);
  auto block = std::move(*found);
  free_.erase(found);
  return block;
}

}  // namespace escalera::cuda
