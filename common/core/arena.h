// One growing arena per device: blocks are handed out best-fit from large slabs and come back to be used again, so that
// a training step neither calls the system's allocator nor touches pages for the first time.
// defines: SlabSource, Arena
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace escalera {

/// Where an arena's slabs come from.
struct SlabSource {
  std::function<std::byte*(std::size_t bytes)> get;                 ///< null if there is no more
  std::function<void(std::byte* slab, std::size_t bytes)> put_back; ///< must not throw
  std::size_t smallest = 0;                                         ///< bytes of the first slab
  std::string_view owner;                                           ///< whose memory it is, for messages
};

/// Memory of the host or of a GPU, whose bytes the arena itself never touches. Blocks are aligned to 256 bytes. Not
/// thread-safe: an arena belongs to one rank.
class Arena {
 public:
  /// Host memory, in huge pages where the system has them.
  Arena();
  /// Memory from `source`.
  explicit Arena(SlabSource source) : source_(std::move(source)) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// A block of at least `bytes` bytes with undefined contents. Throws Error if the system has no more memory.
  std::byte* allocate(std::size_t bytes);
  /// Returns a block that allocate() gave, with the same size.
  void release(std::byte* block, std::size_t bytes) noexcept;

 private:
  void insert_free(std::byte* block, std::size_t bytes);
  void erase_free(std::map<std::byte*, std::size_t>::iterator block);

  SlabSource source_;
  std::vector<std::pair<std::byte*, std::size_t>> slabs_;
  std::map<std::byte*, std::size_t> free_by_address_;             // for merging neighbours
  std::set<std::pair<std::size_t, std::byte*>> free_by_size_;     // for the best fit
};

}  // namespace escalera
