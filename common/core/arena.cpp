#include "common/core/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "common/core/error.h"

namespace escalera {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t huge_page = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }
std::size_t block_size(std::size_t bytes) { return round_up(std::max<std::size_t>(bytes, 1), alignment); }

// Pages of a slab cost nothing until they are touched.
std::byte* host_slab(std::size_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  ::madvise(address, bytes, MADV_HUGEPAGE);  // a hint: without huge pages it is slower, not wrong
  return static_cast<std::byte*>(address);
}

}  // namespace

Arena::Arena()
    : Arena(SlabSource{host_slab, [](std::byte* slab, std::size_t bytes) { ::munmap(slab, bytes); }, std::size_t{32} << 20,
                       "the system"}) {}

Arena::~Arena() {
  for (auto [address, bytes] : slabs_) source_.put_back(address, bytes);
}

std::byte* Arena::allocate(std::size_t bytes) {
  const std::size_t size = block_size(bytes);
  auto best = free_by_size_.lower_bound({size, nullptr});
  if (best == free_by_size_.end()) {
    // Slabs grow with what is in use, so that a large model needs few of them. When memory runs short, a slab of the block's
    // own size may still fit.
    std::size_t held = 0;
    for (const auto& slab : slabs_) held += slab.second;
    std::size_t bytes_of_slab = round_up(std::max({size, source_.smallest, held / 4}), huge_page);
    std::byte* slab = source_.get(bytes_of_slab);
    if (!slab) {
      bytes_of_slab = round_up(size, huge_page);
      slab = source_.get(bytes_of_slab);
    }
    require(slab, "out of memory: {} has no {} bytes more (in use: {})", source_.owner, bytes_of_slab, held);
    slabs_.emplace_back(slab, bytes_of_slab);
    insert_free(slab, bytes_of_slab);
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
