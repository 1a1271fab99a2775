#include "common/core/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "common/core/error.h"

namespace escalera {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t smallest_slab = std::size_t{32} << 20;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }
std::size_t block_size(std::size_t bytes) { return round_up(std::max<std::size_t>(bytes, 1), alignment); }

}  // namespace

Arena::~Arena() {
  for (auto [address, bytes] : slabs_) ::munmap(address, bytes);
}

std::byte* Arena::allocate(std::size_t bytes) {
  const std::size_t size = block_size(bytes);
  auto best = free_by_size_.lower_bound({size, nullptr});
  if (best == free_by_size_.end()) {
    // Slabs grow with what is in use, so that a large model needs few of them. Pages of a slab cost nothing until they
    // are touched.
    std::size_t held = 0;
    for (const auto& slab : slabs_) held += slab.second;
    const std::size_t slab = round_up(std::max({size, smallest_slab, held / 4}), huge_page);
    void* address = ::mmap(nullptr, slab, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(address != MAP_FAILED, "out of memory: the system has no {} bytes more (in use: {})", slab, held);
    ::madvise(address, slab, MADV_HUGEPAGE);  // a hint: without huge pages it is slower, not wrong
    slabs_.emplace_back(static_cast<std::byte*>(address), slab);
    insert_free(static_cast<std::byte*>(address), slab);
    best = free_by_size_.lower_bound({size, nullptr});
  }
  auto [available, block] = *best;
  erase_free(free_by_address_.find(block));
  if (available > size) insert_free(block + size, available - size);
  return block;
}

void Arena::release(std::byte* block, std::size_t bytes) noexcept {
  std::size_t size = block_size(bytes);
  auto next = free_by_address_.lower_bound(block);
  const bool slab_starts_here =
      std::any_of(slabs_.begin(), slabs_.end(), [&](const auto& slab) { return slab.first == block; });
  const bool slab_ends_here =
      std::any_of(slabs_.begin(), slabs_.end(), [&](const auto& slab) { return slab.first == block + size; });
  if (next != free_by_address_.end() && next->first == block + size && !slab_ends_here) {
    size += next->second;
    auto merged = next++;
    erase_free(merged);
  }
  if (next != free_by_address_.begin() && !slab_starts_here) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == block) {
      block = previous->first;
      size += previous->second;
      erase_free(previous);
    }
  }
  insert_free(block, size);
}

void Arena::insert_free(std::byte* block, std::size_t bytes) {
  free_by_address_.emplace(block, bytes);
  free_by_size_.emplace(bytes, block);
}

void Arena::erase_free(std::map<std::byte*, std::size_t>::iterator block) {
  free_by_size_.erase({block->second, block->first});
  free_by_address_.erase(block);
}

}  // namespace escalera
