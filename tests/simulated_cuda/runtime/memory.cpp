#include "tests/simulated_cuda/runtime/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <simulated_cuda/diagnose.h>
#include <simulated_cuda/settings.h>

#include "tests/simulated_cuda/runtime/sanitizers.h"

namespace simulated_cuda {
namespace {

constexpr std::size_t alignment = 256;
[[maybe_unused]] constexpr std::size_t page = 4096;
constexpr std::size_t most_freed = 1024;  // remembered allocations

#ifdef SIMULATED_CUDA_ADDRESS_SANITIZER

// The sanitizer's own allocator guards both ends and keeps freed memory apart.
void* obtain(std::size_t bytes) {
  void* address = nullptr;
  if (::posix_memalign(&address, alignment, bytes) != 0) return nullptr;
  std::memset(address, 0xff, bytes);
  return address;
}
void retire(std::uintptr_t address, std::size_t) {
  std::free(reinterpret_cast<void*>(address));
}
void forget(std::uintptr_t, std::size_t) {}

#else

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + page - 1) / page * page;
}
/// Memory ends, up to the alignment, where a guard page begins.
std::size_t offset_in_pages(std::size_t bytes) {
  return whole_pages(bytes) - (bytes + alignment - 1) / alignment * alignment;
}

// A file of 0xFF that all device memory starts as a copy of, page by page as it is touched: an arena's slab of 64 MB is filled
// in no time, and what nobody uses takes no memory.
constexpr std::size_t template_bytes = 2 << 20;
int template_file() {
  static const int file = [] {
    const int descriptor = ::memfd_create("simulated device memory", MFD_CLOEXEC);
    if (descriptor < 0) return -1;
    const std::vector<unsigned char> block(1 << 16, 0xff);
    for (std::size_t written = 0; written < template_bytes; written += block.size()) {
      if (::write(descriptor, block.data(), block.size()) != static_cast<ssize_t>(block.size())) return -1;
    }
    return descriptor;
  }();
  return file;
}

void* obtain(std::size_t bytes) {
  const std::size_t pages = whole_pages(bytes);
  void* mapping = ::mmap(nullptr, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(mapping);
  ::mprotect(begin + pages, page, PROT_NONE);
  constexpr std::size_t most_by_template = std::size_t{8} << 30;  // each piece is a mapping, of which there are not many
  if (bytes <= page * 64 || bytes > most_by_template || template_file() < 0) {
    std::memset(begin, 0xff, pages);
  } else {
    for (std::size_t done = 0; done < pages; done += template_bytes) {
      const std::size_t piece = std::min(template_bytes, pages - done);
      if (::mmap(begin + done, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, template_file(), 0) ==
          MAP_FAILED) {
        std::memset(begin + done, 0xff, piece);
      }
    }
  }
  return begin + offset_in_pages(bytes);
}

void retire(std::uintptr_t address, std::size_t bytes) {
  char* const begin = reinterpret_cast<char*>(address - offset_in_pages(bytes));
  // Nothing there, and the address is not given out again for now.
  ::mmap(begin, whole_pages(bytes) + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void forget(std::uintptr_t address, std::size_t bytes) {
  ::munmap(reinterpret_cast<char*>(address - offset_in_pages(bytes)), whole_pages(bytes) + page);
}

#endif

}  // namespace

void MemoryMap::add(const Allocation& allocation) {
  // Whatever was remembered there is gone for good now.
  for (auto old = allocations_.lower_bound(allocation.address);
       old != allocations_.end() && old->first < allocation.address + allocation.bytes;) {
    old = allocations_.erase(old);
  }
  auto before = allocations_.lower_bound(allocation.address);
  if (before != allocations_.begin()) {
    --before;
    if (!before->second.live && before->first + before->second.bytes > allocation.address) allocations_.erase(before);
  }
  allocations_[allocation.address] = allocation;
}

void* MemoryMap::allocate_device(int device, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > settings().device_memory || used_[device] > settings().device_memory - bytes) return nullptr;
  void* address = obtain(bytes);
  if (!address) return nullptr;
  used_[device] += bytes;
  add({reinterpret_cast<std::uintptr_t>(address), bytes, MemoryKind::device, device});
  return address;
}

void* MemoryMap::allocate_pinned(std::size_t bytes) {
  void* address = nullptr;
  if (::posix_memalign(&address, 4096, bytes) != 0) return nullptr;
  std::memset(address, 0xff, bytes);
  std::lock_guard lock(mutex_);
  add({reinterpret_cast<std::uintptr_t>(address), bytes, MemoryKind::pinned});
  return address;
}

bool MemoryMap::register_host(void* address, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  Allocation allocation{reinterpret_cast<std::uintptr_t>(address), bytes, MemoryKind::pinned};
  allocation.registered = true;
  const auto known = allocations_.find(allocation.address);
  if (known != allocations_.end() && known->second.live) return false;
  add(allocation);
  return true;
}

bool MemoryMap::free(const void* address, MemoryKind kind) {
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == allocations_.end() || !found->second.live || found->second.kind != kind || found->second.registered)
    return false;
  Allocation& allocation = found->second;
  if (kind == MemoryKind::pinned) {
    std::free(const_cast<void*>(address));
    allocations_.erase(found);
    return true;
  }
  used_[allocation.device] -= allocation.bytes;
  allocation.live = false;
  retire(allocation.address, allocation.bytes);
  freed_.push_back(allocation.address);
  if (freed_.size() > most_freed) {
    const auto oldest = allocations_.find(freed_.front());
    if (oldest != allocations_.end() && !oldest->second.live) {
      forget(oldest->first, oldest->second.bytes);
      allocations_.erase(oldest);
    }
    freed_.pop_front();
  }
  return true;
}

bool MemoryMap::unregister_host(const void* address) {
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == allocations_.end() || !found->second.registered) return false;
  allocations_.erase(found);
  return true;
}

std::optional<Allocation> MemoryMap::find(std::uintptr_t address) const {
  std::lock_guard lock(mutex_);
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return std::nullopt;
  const Allocation& allocation = std::prev(after)->second;
  if (address - allocation.address >= allocation.bytes) return std::nullopt;
  return allocation;
}

std::size_t MemoryMap::used(int device) const {
  std::lock_guard lock(mutex_);
  const auto found = used_.find(device);
  return found == used_.end() ? 0 : found->second;
}

MemoryMap& memory_map() {
  // Never destroyed: objects of other files may free memory when the process ends.
  static MemoryMap& instance = *new MemoryMap;
  return instance;
}

}  // namespace simulated_cuda
