#include "tools/generate/generation.h"

#include <vector>

namespace escalera {

void generate(Model& model, CachedAttention& cache, std::span<const std::int32_t> prompt, Index count,
              Sampler& sampler, const std::function<void(std::int32_t token)>& emit) {
  require(!prompt.empty(), "generation needs a prompt of at least one token");
  const Index room = cache.capacity() - cache.length();
  const auto length = static_cast<Index>(prompt.size());
  require(length + count - 1 <= room,
          "{} tokens after a prompt of {} do not fit into the {} free places of the cache", count, length,
          room);

  std::vector<std::int32_t> next(prompt.begin(), prompt.end());
  for (Index drawn = 0; drawn < count; drawn++) {
    const std::vector<std::int32_t> positions = cache.positions(static_cast<Index>(next.size()));
    const Tensor logits = model.next_token_logits(next, positions);  // [1, V]
    next = {sampler.draw(to_host(model.ops().device(), logits))};
    emit(next.front());
  }
}

}  // namespace escalera
