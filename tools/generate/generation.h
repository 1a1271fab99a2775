// The loop of generation: one pass over the prompt, then one token at a time.
// defines: WhenFull, generate()
#pragma once

#include <functional>
#include <span>

#include "common/model/model.h"
#include "tools/generate/cached_attention.h"
#include "tools/generate/sampler.h"

namespace escalera {

/// What happens when the text outgrows the cache.
enum class WhenFull {
  refuse,  ///< it must not: Error before the first token
  slide,  ///< the cache begins anew with the last half of its capacity of the text, and the rest is forgotten
};

/// Continues `prompt` (one token at least) by `count` tokens and calls `emit` with each as soon as it is drawn. `cache`, which
/// must be empty, is the attention core that `model` was built with. Every token but the last drawn goes through the model,
/// so without sliding prompt + count - 1 must fit into the cache.
///
/// Sliding reads half a cache again instead of dropping the oldest keys one by one. That costs one more pass now and then, and
/// the model sees only what it saw in training: texts that begin at position 0 and are no longer than the cache.
void generate(Model& model, CachedAttention& cache, std::span<const std::int32_t> prompt, Index count,
              Sampler& sampler, WhenFull when_full, const std::function<void(std::int32_t token)>& emit);

}  // namespace escalera
