// The loop of generation: one pass over the prompt, then one token at a time.
// defines: generate()
#pragma once

#include <functional>
#include <span>

#include "common/model/model.h"
#include "tools/generate/cached_attention.h"
#include "tools/generate/sampler.h"

namespace escalera {

/// Continues `prompt` (one token at least) by `count` tokens and calls `emit` with each as soon as it is drawn. `cache` is
/// the attention core that `model` was built with; what it holds already counts as text before the prompt. Every token but
/// the last drawn goes through the model, so prompt + count - 1 must fit into the cache; Error otherwise, before the first.
void generate(Model& model, CachedAttention& cache, std::span<const std::int32_t> prompt, Index count,
              Sampler& sampler, const std::function<void(std::int32_t token)>& emit);

}  // namespace escalera
