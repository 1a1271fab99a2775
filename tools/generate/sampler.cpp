#include "tools/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "common/core/philox.h"

namespace escalera {

std::int32_t Sampler::draw(std::span<const double> logits) {
  require(!logits.empty(), "there are no logits to draw from");
  for (const double logit : logits) {
    require(std::isfinite(logit),
            "the model's logits are not finite: its weights hold NaN or are far too large");
  }
  // Counted also where nothing is drawn, so that the n-th token uses the n-th number whatever came before.
  const std::uint64_t number = draws_++;
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const double of_a = logits[static_cast<std::size_t>(a)], of_b = logits[static_cast<std::size_t>(b)];
    return of_a > of_b || (of_a == of_b && a < b);
  };
  std::vector<std::int32_t> candidates(logits.size());
  std::iota(candidates.begin(), candidates.end(), 0);
  const std::int32_t best = *std::min_element(candidates.begin(), candidates.end(), likelier);
  if (settings_.temperature == 0) return best;
  if (settings_.top_k > 0 && settings_.top_k < static_cast<Index>(candidates.size())) {
    std::nth_element(candidates.begin(), candidates.begin() + settings_.top_k, candidates.end(), likelier);
    candidates.resize(static_cast<std::size_t>(settings_.top_k));
    // nth_element leaves the survivors in an order that is the library's own; the draw below must not depend on it.
    std::sort(candidates.begin(), candidates.end());
  }

  // Relative to the largest logit every exponent is at most 0: nothing overflows, and a tiny temperature becomes greedy.
  const double largest = logits[static_cast<std::size_t>(best)];
  std::vector<double> cumulative(candidates.size());
  double sum = 0;
  for (std::size_t i = 0; i < candidates.size(); i++) {
    sum += std::exp((logits[static_cast<std::size_t>(candidates[i])] - largest) / settings_.temperature);
    cumulative[i] = sum;
  }
  const double point = uniform(settings_.seed, hash_name("generate"), number) * sum;
  // The first candidate whose share of [0, sum) ends behind the point: one with probability 0 has no share.
  const auto drawn = std::upper_bound(cumulative.begin(), cumulative.end(), point);
  if (drawn == cumulative.end()) return best;  // the product above was rounded up to sum
  return candidates[static_cast<std::size_t>(drawn - cumulative.begin())];
}

}  // namespace escalera
