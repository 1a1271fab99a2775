// What memory there is: device allocations and pinned host memory of the process, live or freed not long ago.
// defines: MemoryKind, Allocation, MemoryMap, memory_map()
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace simulated_cuda {

enum class MemoryKind { device, pinned };

struct Allocation {
  std::uintptr_t address = 0;  // without tag
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::device;
  int device = 0;
  bool live = true;
  bool registered = false;  // the caller's own memory, pinned by cudaHostRegister
};

class MemoryMap {
 public:
  /// Device memory, filled with 0xFF; null if the device has not so much left. The result has no tag.
  void* allocate_device(int device, std::size_t bytes);
  void* allocate_pinned(std::size_t bytes);
  bool register_host(void* address, std::size_t bytes);
  /// False if nothing of that kind starts at this address. Freed device memory stays known, and untouchable, for a while.
  bool free(const void* address, MemoryKind kind);
  bool unregister_host(const void* address);

  /// What lies, or lay, at this address (without tag).
  std::optional<Allocation> find(std::uintptr_t address) const;
  std::size_t used(int device) const;

 private:
  void add(const Allocation& allocation);

  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Allocation> allocations_;
  std::map<int, std::size_t> used_;
  std::deque<std::uintptr_t> freed_;
};

MemoryMap& memory_map();

}  // namespace simulated_cuda
