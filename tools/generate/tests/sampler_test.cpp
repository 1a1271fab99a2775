// How the next token is drawn.
#include "tools/generate/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace escalera {
namespace {

const std::vector<double> logits = {0.5, 2.0, -1.0, 1.5, 2.0, 0.0};

std::vector<std::int32_t> draws(const SamplerSettings& settings, int count) {
  Sampler sampler(settings);
  std::vector<std::int32_t> result;
  for (int i = 0; i < count; i++) result.push_back(sampler.draw(logits));
  return result;
}

TEST(Sampler, TemperatureZeroTakesTheLikeliestAndOfEqualOnesTheFirst) {
  for (const std::int32_t token : draws({.temperature = 0, .seed = 3}, 20)) EXPECT_EQ(token, 1);
}

TEST(Sampler, SmallTemperaturesTendToTheLikeliest) {
  Sampler sampler({.temperature = 1e-3});
  const std::vector<double> one_winner = {0.0, 0.1, 3.0, 2.9};
  for (int i = 0; i < 1000; i++) EXPECT_EQ(sampler.draw(one_winner), 2);
  // Even the smallest number that there is: exponents become minus infinity, never NaN.
  Sampler smallest({.temperature = std::numeric_limits<double>::denorm_min()});
  EXPECT_EQ(smallest.draw(one_winner), 2);
}

TEST(Sampler, TopKExcludesTheRest) {
  const std::vector<std::int32_t> tokens = draws({.temperature = 100, .top_k = 3}, 2000);
  EXPECT_EQ(std::set<std::int32_t>(tokens.begin(), tokens.end()), (std::set<std::int32_t>{1, 3, 4}));
  // Two tokens share the highest logit: with room for one, the lower id stays.
  for (const std::int32_t token : draws({.temperature = 100, .top_k = 1}, 100)) EXPECT_EQ(token, 1);
}

TEST(Sampler, TopKBeyondTheVocabularyIsAll) {
  EXPECT_EQ(draws({.top_k = 6}, 200), draws({}, 200));
  EXPECT_EQ(draws({.top_k = 1000}, 200), draws({}, 200));
}

TEST(Sampler, SameSeedSameDrawsOtherSeedOthers) {
  EXPECT_EQ(draws({.seed = 7}, 100), draws({.seed = 7}, 100));
  EXPECT_NE(draws({.seed = 7}, 100), draws({.seed = 8}, 100));
}

TEST(Sampler, FrequenciesAreTheSoftmax) {
  constexpr int count = 20000;
  for (const double temperature : {0.5, 1.0, 2.0}) {
    std::vector<double> frequency(logits.size(), 0.0);
    for (const std::int32_t token : draws({.temperature = temperature}, count)) {
      frequency[static_cast<std::size_t>(token)] += 1.0 / count;
    }
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit / temperature);
    for (std::size_t i = 0; i < logits.size(); i++) {
      const double expected = std::exp(logits[i] / temperature) / sum;
      // Five standard deviations of a frequency over `count` draws: 6 tokens at 3 temperatures pass, a wrong formula does not.
      EXPECT_NEAR(frequency[i], expected, 5 * std::sqrt(expected * (1 - expected) / count)) << "token " << i;
    }
  }
}

TEST(Sampler, BrokenLogitsAreRefused) {
  Sampler sampler({});
  const std::vector<double> broken = {0.0, std::numeric_limits<double>::quiet_NaN()};
  EXPECT_NE(message_of([&] { sampler.draw(broken); }).find("not finite"), std::string::npos);
}

}  // namespace
}  // namespace escalera
