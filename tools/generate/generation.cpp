#include "tools/generate/generation.h"

#include <algorithm>
#include <vector>

namespace escalera {

void generate(Model& model, CachedAttention& cache, std::span<const std::int32_t> prompt, Index count,
              Sampler& sampler, WhenFull when_full, const std::function<void(std::int32_t token)>& emit) {
  require(!prompt.empty(), "generation needs a prompt of at least one token");
  require(cache.length() == 0, "generation begins with an empty cache, not with {} tokens in it",
          cache.length());
  const Index capacity = cache.capacity();
  const auto prompt_length = static_cast<Index>(prompt.size());
  require(when_full == WhenFull::slide || prompt_length + count - 1 <= capacity,
          "{} tokens after a prompt of {} do not fit into a cache of {}", count, prompt_length, capacity);

  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  Index unread = prompt_length;  // tokens at the end of the text that the model has not seen
  for (Index drawn = 0; drawn < count; drawn++) {
    if (cache.length() + unread > capacity) {
      cache.truncate(0);
      unread = std::max<Index>(1, capacity / 2);
    }
    const std::vector<std::int32_t> positions = cache.positions(unread);
    const auto next = std::span(text).last(static_cast<std::size_t>(unread));
    const Tensor logits = model.next_token_logits(next, positions);  // [1, V]
    text.push_back(sampler.draw(to_host(model.ops().device(), logits)));
    unread = 1;
    emit(text.back());
  }
}

}  // namespace escalera
