#include "common/train/replicas.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <map>

#include "common/core/philox.h"

namespace escalera {
namespace {

// FNV-1a on four interleaved streams of words: one stream would wait for its own multiplications.
std::string hash_of(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, 4> hash{0xcbf29ce484222325ULL, 1, 2, 3};
  for (std::size_t at = 0, i = 0; at < bytes.size(); at += 8, i++) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    hash[i % 4] = (hash[i % 4] ^ word) * 0x100000001b3ULL;
  }
  return fmt::format("{:016x}", hash[0] ^ (hash[1] * 3) ^ (hash[2] * 5) ^ (hash[3] * 7));
}

}  // namespace

void check_replicas(Communicator& world, Model& model, Index step) {
  if (world.size() == 1) return;
  // A line of 16 digits for what it is (parameter, slice, shard) and 16 for its bits, for each parameter.
  constexpr std::size_t digits = 16;
  std::string lines;
  std::map<std::string, std::string> names;
  std::vector<std::byte> bytes;
  for (const Bucket& bucket : model.buckets()) {
    const Tensor& held = bucket.whole_weights ? bucket.weights : bucket.weight_shard;
    const Index first = bucket.whole_weights ? 0 : bucket.shard_begin;
    bytes.resize(static_cast<std::size_t>(held.bytes()));
    model.ops().device().copy_to_host(bytes.data(), held.data(), held.bytes());
    for (const Parameter& parameter : bucket.parameters) {
      const Range part = bucket.whole_weights ? Range{0, parameter.local_size()} : bucket.in_shard(parameter);
      if (part.size() == 0) continue;
      const std::string what = fmt::format("{} {} {} {} {}", parameter.name, parameter.slice.begin, parameter.slice.size,
                                           part.begin, part.end);
      const std::string key = fmt::format("{:016x}", hash_name(what));
      names[key] = parameter.name;
      const auto element = static_cast<std::size_t>(size_of(held.dtype()));
      lines += key + hash_of(std::span(bytes).subspan(static_cast<std::size_t>(parameter.offset + part.begin - first) * element,
                                                      static_cast<std::size_t>(part.size()) * element));
    }
  }
  const std::vector<std::string> all = world.gather_strings(lines);
  std::map<std::string, std::pair<std::string, std::size_t>> seen;  // hash, and the first rank that has it
  for (std::size_t rank = 0; rank < all.size(); rank++) {
    for (std::size_t at = 0; at < all[rank].size(); at += 2 * digits) {
      const std::string key = all[rank].substr(at, digits), hash = all[rank].substr(at + digits, digits);
      const auto [place, is_new] = seen.try_emplace(key, hash, rank);
      const auto& [other, other_rank] = place->second;
      const auto name = names.find(key);
      require(is_new || other == hash,
              "replicas have drifted apart at step {}: {} on rank {} (hash {}) differs from that of rank {} ({})", step,
              name == names.end() ? "a weight" : name->second, rank, hash, other_rank, other);
    }
  }
}

}  // namespace escalera
