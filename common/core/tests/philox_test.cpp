// Philox against the known answers that Random123 publishes, and the distributions made from it.
#include "common/core/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

namespace escalera {
namespace {

using Block = std::array<std::uint32_t, 4>;

TEST(Philox, GivesTheKnownAnswersOfRandom123) {
  EXPECT_EQ(philox(0, 0, 0), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ULL, ~0ULL, ~0ULL), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Digits of pi, in the order of words in which Random123 lists them.
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EveryPartOfKeyAndCounterMatters) {
  std::set<Block> blocks = {philox(0, 0, 0)};
  for (const std::uint64_t one : {1ULL, 1ULL << 32}) {
    blocks.insert(philox(one, 0, 0));
    blocks.insert(philox(0, one, 0));
    blocks.insert(philox(0, 0, one));
  }
  EXPECT_EQ(blocks.size(), 7U);
}

struct Moments {
  double mean = 0, variance = 0, skew = 0, kurtosis = 0, lag_covariance = 0;
};

Moments moments(int count, const std::function<double(std::uint64_t)>& draw, double center) {
  Moments m;
  double previous = 0;
  for (int i = 0; i < count; ++i) {
    const double x = draw(static_cast<std::uint64_t>(i)) - center;
    m.mean += x / count;
    m.variance += x * x / count;
    m.skew += x * x * x / count;
    m.kurtosis += x * x * x * x / count;
    m.lag_covariance += x * previous / count;
    previous = x;
  }
  return m;
}

constexpr int draws = 200000;
// Five standard errors of a mean over that many draws of variance `variance`; the draws are fixed, so no run
// is unlucky.
double five_errors(double variance) {
  return 5 * std::sqrt(variance / draws);
}

TEST(Uniform, HasTheMomentsOfTheUnitInterval) {
  const auto m = moments(
      draws, [](std::uint64_t i) { return uniform(7, 3, i); }, 0.5);
  EXPECT_NEAR(m.mean, 0, five_errors(1.0 / 12));
  EXPECT_NEAR(m.variance, 1.0 / 12, five_errors(1.0 / 180));
  EXPECT_NEAR(m.lag_covariance, 0, five_errors(1.0 / 144));
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_GE(uniform(7, 3, i), 0.0);
    EXPECT_LT(uniform(7, 3, i), 1.0);
  }
}

TEST(Normal, HasTheMomentsOfTheStandardNormalDistribution) {
  const auto m = moments(
      draws, [](std::uint64_t i) { return normal(7, hash_name("model.norm.weight"), i); }, 0);
  EXPECT_NEAR(m.mean, 0, five_errors(1));
  EXPECT_NEAR(m.variance, 1, five_errors(2));
  EXPECT_NEAR(m.skew, 0, five_errors(15));
  EXPECT_NEAR(m.kurtosis, 3, five_errors(96));
  EXPECT_NEAR(m.lag_covariance, 0, five_errors(1));
}

// The fault this guards against: weights of two layers, or of two neighbouring seeds, that are the same
// draws.
TEST(Normal, DiffersBetweenNamesAndSeeds) {
  const std::uint64_t a = hash_name("model.layers.0.mlp.up_proj.weight"),
                      b = hash_name("model.layers.2.mlp.up_proj.weight");
  double by_name = 0, by_seed = 0;
  for (std::uint64_t i = 0; i < draws; ++i) {
    by_name += normal(1, a, i) * normal(1, b, i) / draws;
    by_seed += normal(1, a, i) * normal(2, a, i) / draws;
  }
  EXPECT_NEAR(by_name, 0, five_errors(1));
  EXPECT_NEAR(by_seed, 0, five_errors(1));
}

TEST(Normal, ATestOfMomentsSeesAReusedDraw) {
  const auto m = moments(
      draws, [](std::uint64_t i) { return normal(7, 3, i / 2); }, 0);
  EXPECT_GT(std::abs(m.lag_covariance), five_errors(1));
}

TEST(HashName, GivesTheKnownAnswersOfFnv1a) {
  EXPECT_EQ(hash_name(""), 0xcbf29ce484222325U);
  EXPECT_EQ(hash_name("a"), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(hash_name("foobar"), 0x85944171f73967e8U);
}

}  // namespace
}  // namespace escalera
