// From logits to the next token.
// defines: SamplerSettings, Sampler
#pragma once

#include <cstdint>
#include <span>

#include "common/core/dtype.h"

namespace escalera {

/// How tokens are drawn.
struct SamplerSettings {
  double temperature = 1.0;  ///< logits are divided by it; 0: always the likeliest token
  Index top_k = 0;           ///< only that many of the likeliest tokens are drawn from; 0: all
  std::uint64_t seed = 1;    ///< of the random numbers
};

/// Draws tokens from softmax(logits / temperature). The n-th draw is a function of (seed, n, logits) and of nothing else, so
/// that a text can be had again on any machine that computes the same logits.
class Sampler {
 public:
  /// Starts at draw 0.
  explicit Sampler(const SamplerSettings& settings) : settings_(settings) {}

  /// The next token. Among equal logits the lower id counts as the likelier one. Throws Error if a logit is not finite: the
  /// model's weights are broken then.
  std::int32_t draw(std::span<const double> logits);

 private:
  SamplerSettings settings_;
  std::uint64_t draws_ = 0;
};

}  // namespace escalera
