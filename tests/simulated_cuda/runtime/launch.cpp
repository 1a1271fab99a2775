#include <cuda_runtime.h>

#include <sys/mman.h>

#include <cstring>

#include <simulated_cuda/device_pointer.h>
#include <simulated_cuda/settings.h>

#include "tests/simulated_cuda/runtime/block_executor.h"
#include "tests/simulated_cuda/runtime/counters.h"
#include "tests/simulated_cuda/runtime/device.h"
#include "tests/simulated_cuda/runtime/kernel_symbols.h"
#include "tests/simulated_cuda/runtime/memory.h"

namespace simulated_cuda {
namespace {

/// Whether the host has something at this address.
bool is_mapped(std::uintptr_t address) {
  unsigned char resident = 0;
  return ::mincore(reinterpret_cast<void*>(address & ~std::uintptr_t{4095}), 1, &resident) == 0;
}

// Programs, heaps, stacks and mappings lie between these, for sanitizers too. Two numbers of 32 bits look like that only if
// the second is between 21760 and 32767 and the first happens to be an address there.
bool looks_like_host_pointer(std::uintptr_t word) {
  return word >= std::uintptr_t{0x5500} << 32 && word < std::uintptr_t{1} << 47 && is_mapped(word);
}

}  // namespace

Launch::Launch(const cudaLaunchConfig_t& config, const void* kernel) : config_(config), kernel_(kernel) {
  const std::shared_ptr<Stream> stream = stream_of(config.stream);
  if (stream->device() != current_ordinal()) {
    fail("launch of %s: the stream is of device %d, but the calling thread's current device is %d",
         kernel_name(kernel).c_str(), stream->device(), current_ordinal());
  }
  const dim3 grid = config.gridDim, block = config.blockDim;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff ||
      grid.y > 65535 || grid.z > 65535) {
    error_ = cudaErrorInvalidConfiguration;
  } else if (config.dynamicSmemBytes > find_device(stream->device())->shared_limit(kernel)) {
    error_ = cudaErrorInvalidValue;
  }
}

std::uintptr_t Launch::admit_pointer(std::uintptr_t word) {
  const void* pointer = reinterpret_cast<const void*>(word);
  const int device = current_ordinal();
  const auto reject = [&](const char* why) {
    fail("launch of %s: argument %d, %p, %s", kernel_name(kernel_).c_str(), arguments_, pointer, why);
  };
  if (!is_tagged(pointer)) {
    const auto host = memory_map().find(word);
    reject(host && host->live ? "is pinned host memory, which kernels may not use here" : "is no device pointer");
  }
  const std::uintptr_t address = bits(untagged(pointer));
  // One past the end is a place where an empty range may begin.
  auto allocation = memory_map().find(address);
  if (!allocation || !allocation->live) {
    if (const auto before = memory_map().find(address - 1); before && before->live) allocation = before;
  }
  if (!allocation) reject("points to no allocation");
  if (!allocation->live) reject("points to device memory that was freed");
  if (device_of(pointer) != device) {
    fail("launch of %s on device %d: argument %d points to memory of device %d", kernel_name(kernel_).c_str(), device,
         arguments_, device_of(pointer));
  }
  return address;
}

void Launch::admit_object(void* object, std::size_t size) {
  for (std::size_t offset = 0; offset + sizeof(void*) <= size; offset += sizeof(void*)) {
    char* const place = static_cast<char*>(object) + offset;
    std::uintptr_t word = 0;
    std::memcpy(&word, place, sizeof word);
    if (is_tagged(reinterpret_cast<const void*>(word))) {
      // A number may look like this by chance, so what points nowhere is left as it is.
      if (!memory_map().find(word & address_mask) && !memory_map().find((word & address_mask) - 1)) continue;
      word = admit_pointer(word);
      std::memcpy(place, &word, sizeof word);
    } else if (looks_like_host_pointer(word)) {
      fail("launch of %s: argument %d holds, at byte %zu, the host pointer %p", kernel_name(kernel_).c_str(), arguments_,
           offset, reinterpret_cast<const void*>(word));
    }
  }
}

cudaError_t Launch::submit(void (*run)(const void*), std::shared_ptr<const void> arguments) {
  if (error_ != cudaSuccess) return note(error_);
  count(counters().kernel_launches);
  Grid grid{config_.gridDim, config_.blockDim, config_.dynamicSmemBytes};
  const std::shared_ptr<Stream> stream = stream_of(config_.stream);
  grid.random = settings().seed * 1000003 + find_device(stream->device())->next_launch();
  enqueue(stream, [kernel = kernel_, run, arguments, grid] {
    BlockExecutor::of_this_thread().run({kernel, run, arguments.get()}, grid);
  });
  return cudaSuccess;
}

}  // namespace simulated_cuda
