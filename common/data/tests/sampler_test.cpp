// Samples: which text a run sees, in which order, and that no layout changes it.
#include "common/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "common/data/permutation.h"
#include "tests/support/temporary_directory.h"

namespace escalera {
namespace {

TEST(Permute, IsOneToOneForEverySizeAndDiffersByKeyAndStream) {
  for (const Index count : {1, 2, 3, 4, 5, 16, 17, 61, 64, 65, 1000}) {
    std::set<Index> images;
    for (Index i = 0; i < count; ++i) {
      const Index image = permute(i, count, 42, 7);
      EXPECT_GE(image, 0);
      EXPECT_LT(image, count);
      images.insert(image);
    }
    EXPECT_EQ(static_cast<Index>(images.size()), count);
  }
  int same_key = 0, same_stream = 0, fixed = 0;
  for (Index i = 0; i < 1000; ++i) {
    same_key += permute(i, 1000, 42, 7) == permute(i, 1000, 43, 7);
    same_stream += permute(i, 1000, 42, 7) == permute(i, 1000, 42, 8);
    fixed += permute(i, 1000, 42, 7) == i;
  }
  // Two random permutations agree in one place on average, whatever their size; 8 or more happens once in
  // 100000 times.
  EXPECT_LT(same_key, 8);
  EXPECT_LT(same_stream, 8);
  EXPECT_LT(fixed, 8);
}

TEST(Permute, SendsEachIndexEverywhere) {
  constexpr int count = 5, keys = 20000;
  int hits[count][count] = {};
  for (int key = 0; key < keys; ++key) {
    for (int i = 0; i < count; ++i) ++hits[i][permute(i, count, static_cast<std::uint64_t>(key), 0)];
  }
  // Five standard deviations of a count with mean 4000 and variance 3200.
  for (const auto& row : hits) {
    for (const int n : row) EXPECT_NEAR(n, keys / count, 283);
  }
}

TEST(Permute, HandlesRangesBeyond32Bits) {
  const Index count = (Index{1} << 40) + 12345;
  std::set<Index> images;
  for (Index i = 0; i < 1000; ++i) images.insert(permute(count - 1 - i, count, 1, 2));
  EXPECT_EQ(images.size(), 1000U);
  EXPECT_LT(*images.rbegin(), count);
  EXPECT_GT(*images.rbegin(), count / 2);
}

/// Token at position i is i % 65521, a prime: what a sample contains tells where it comes from.
class SamplerTest : public ::testing::Test {
 protected:
  TokenFile file_of(Index tokens) {
    std::string bytes;
    for (Index i = 0; i < tokens; ++i) {
      const auto id = static_cast<std::uint16_t>(i % 65521);
      bytes.append(reinterpret_cast<const char*>(&id), 2);
    }
    return TokenFile(directory_.write("tokens", bytes), 16);
  }
  TemporaryDirectory directory_;
};

TEST_F(SamplerTest, HoldsNothingOutUnlessAsked) {
  const TokenFile file = file_of(1003);
  const DataSplit all = split_tokens(file, 0, 24);
  EXPECT_EQ(all.training.size(), 1003);
  EXPECT_EQ(all.validation.size(), 0);
  const DataSplit split = split_tokens(file, 0.1, 24);
  EXPECT_EQ(split.training.begin, 0);
  EXPECT_EQ(split.training.end, 903);
  EXPECT_EQ(split.validation.begin, 903);
  EXPECT_EQ(split.validation.end, 1003);
  EXPECT_EQ(split_tokens(file, 0.0001, 24).validation.size(), 25);
  EXPECT_NE(message_of<UsageError>([&] { split_tokens(file, 1, 24); }), "");
  EXPECT_NE(message_of<UsageError>([&] { split_tokens(file, -0.1, 24); }), "");
  const std::string message = message_of<UsageError>([&] { split_tokens(file, 0.99, 24); });
  for (const char* part :
       {"1003 tokens", "992 are held out", "--seq-length 24", "at least 25", "at least 50"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
}

// C26
TEST_F(SamplerTest, OneTokenMoreThanTheSequenceIsEnough) {
  const TokenFile file = file_of(25);
  const BatchSampler sampler(file, {0, 25}, 24, 1);
  EXPECT_EQ(sampler.samples_per_epoch(), 1);
  Batch batch;
  sampler.fill(std::vector<Index>{0, 1, 99}, batch);
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t i = 0; i < 24; ++i) {
      EXPECT_EQ(batch.tokens[row * 24 + i], static_cast<std::int32_t>(i));
      EXPECT_EQ(batch.targets[row * 24 + i], static_cast<std::int32_t>(i) + 1);
    }
  }
  const std::string message = message_of<UsageError>([&] { BatchSampler(file, {1, 25}, 24, 1); });
  for (const char* part : {"--data", "24 tokens", "--seq-length 24", "25"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
  EXPECT_NE(message_of<UsageError>([&] { BatchSampler(file, {0, 25}, 0, 1); }), "");
}

TEST_F(SamplerTest, TargetsAreTheNextTokensAndStayInTheRange) {
  const TokenFile file = file_of(5000);
  const TokenRange range{17, 4711};
  const BatchSampler sampler(file, range, 24, 3);
  Batch batch;
  for (Index sample = 0; sample < 3 * sampler.samples_per_epoch(); ++sample) {
    sampler.fill(std::vector<Index>{sample}, batch);
    const Index begin = sampler.position(sample);
    EXPECT_GE(begin, range.begin);
    EXPECT_LE(begin + 24 + 1, range.end);
    for (std::size_t i = 0; i < 24; ++i) {
      EXPECT_EQ(batch.tokens[i], begin + static_cast<Index>(i));
      EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
    }
  }
}

TEST_F(SamplerTest, AnEpochVisitsEachWindowOnceAndTheNextInAnotherOrder) {
  for (const Index tokens :
       {Index{24 * 7 + 1}, Index{24 * 7 + 20}, Index{24 * 100 + 1}, Index{24 * 100 + 24}}) {
    const TokenFile file = file_of(tokens);
    const BatchSampler sampler(file, {0, tokens}, 24, 3);
    const Index windows = sampler.samples_per_epoch();
    EXPECT_EQ(windows, tokens > 24 * 64 ? 99 : 7);
    std::set<Index> phases;
    std::vector<Index> first_order;
    for (Index epoch = 0; epoch < 40; ++epoch) {
      std::vector<Index> begins;
      for (Index i = 0; i < windows; ++i) begins.push_back(sampler.position(epoch * windows + i));
      if (epoch == 0) first_order = begins;
      if (epoch == 1) {
        EXPECT_NE(begins, first_order);
      }
      std::sort(begins.begin(), begins.end());
      for (std::size_t i = 1; i < begins.size(); ++i) EXPECT_EQ(begins[i] - begins[i - 1], 24);
      phases.insert(begins[0]);
    }
    // The room for shifts is 0, 19, 24 and 47 tokens; 40 epochs meet most of the first 24.
    if (tokens == 24 * 7 + 1) {
      EXPECT_EQ(phases.size(), 1U);
    }
    if (tokens > 24 * 7 + 1) {
      EXPECT_GT(phases.size(), 12U);
    }
  }
}

TEST_F(SamplerTest, TheOrderIsAFunctionOfTheSeed) {
  const TokenFile file = file_of(24 * 50);
  const BatchSampler a(file, {0, file.size()}, 24, 3), b(file, {0, file.size()}, 24, 3),
      c(file, {0, file.size()}, 24, 4);
  int same = 0;
  for (Index sample = 0; sample < 49; ++sample) {
    EXPECT_EQ(a.position(sample), b.position(sample));
    same += a.position(sample) == c.position(sample);
  }
  EXPECT_LT(same, 10);
}

TEST_F(SamplerTest, AMaskBelongsToTheSample) {
  const TokenFile file = file_of(500);
  BatchSampler sampler(file, {0, 500}, 24, 3);
  sampler.set_target_mask(
      [](Index sample, Index position) { return sample != 1 && (sample != 2 || position == 5); });
  Batch batch;
  sampler.fill(std::vector<Index>{2, 0, 1}, batch);
  EXPECT_EQ(batch.unmasked_targets(), 1 + 24 + 0);
  EXPECT_EQ(batch.targets[5], batch.tokens[5] + 1);
  EXPECT_EQ(batch.targets[4], masked_target);
}

using Deal =
    std::function<Index(const BatchShape&, Index consumed, Index micro_batch, Index dp_rank, Index row)>;

/// Whether a step of each layout with 12 sequences takes samples 36 to 47, each once.
bool every_layout_takes_the_same_samples(const Deal& deal) {
  for (const Index b : {1, 2, 3, 4, 6, 12}) {
    for (Index d = 1; d <= 12 / b; ++d) {
      if (12 % (b * d) != 0) continue;
      const BatchShape shape = resolve_batch(12, b, 0, d);
      std::multiset<Index> samples;
      for (Index m = 0; m < shape.accumulation; ++m) {
        for (Index rank = 0; rank < d; ++rank) {
          for (Index row = 0; row < b; ++row) samples.insert(deal(shape, 36, m, rank, row));
        }
      }
      std::vector<Index> expected(12);
      std::iota(expected.begin(), expected.end(), 36);
      if (!std::equal(samples.begin(), samples.end(), expected.begin(), expected.end())) return false;
    }
  }
  return true;
}

// C26, and the ground of every comparison between layouts.
TEST(BatchShapeTest, EveryLayoutTakesTheSameSamples) {
  EXPECT_TRUE(every_layout_takes_the_same_samples([](const BatchShape& s, Index c, Index m, Index r,
                                                     Index row) { return s.sample_index(c, m, r, row); }));
}

TEST(BatchShapeTest, TheTestSeesRanksThatShareSamples) {
  EXPECT_FALSE(
      every_layout_takes_the_same_samples([](const BatchShape& s, Index c, Index m, Index, Index row) {
        return c + m * s.micro_batch_size + row;  // the classic fault: each rank reads as if it were alone
      }));
}

TEST(BatchShapeTest, FourRanksAndFourMicroBatchesMeetTheSameSamplesInTheSameOrder) {
  const BatchShape ranks{2, 1, 4}, accumulated{2, 4, 1};
  for (Index j = 0; j < 4; ++j) EXPECT_EQ(ranks.samples(8, 0, j), accumulated.samples(8, j, 0));
  EXPECT_EQ(ranks.samples(8, 0, 1), (std::vector<Index>{10, 11}));
}

// C03
TEST(BatchShapeTest, AGlobalBatchThatDoesNotDivideIsRefusedWithAllNumbers) {
  const std::string message = message_of<UsageError>([] { resolve_batch(10, 2, 0, 2); });
  for (const char* part : {"--global-batch-size 10", "--micro-batch-size 2", "--dp 2", "8 or 12"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
  EXPECT_NE(message_of<UsageError>([] { resolve_batch(3, 2, 0, 2); }).find("; 4 would work"),
            std::string::npos);
  EXPECT_NE(message_of<UsageError>([] { resolve_batch(12, 2, 4, 2); }).find("make it 3"), std::string::npos);
  for (const auto& bad : {std::array<Index, 4>{-1, 1, 1, 1}, {1, 0, 1, 1}, {1, 1, -1, 1}, {1, 1, 1, 0}}) {
    EXPECT_NE(message_of<UsageError>([&] { resolve_batch(bad[0], bad[1], bad[2], bad[3]); }), "");
  }
}

TEST(BatchShapeTest, TokensPerStepFollowTheFormula) {
  EXPECT_EQ(resolve_batch(0, 2, 4, 3).tokens_per_step(24), 2 * 4 * 3 * 24);
  EXPECT_EQ(resolve_batch(0, 2, 0, 3).global_batch(), 6);
  EXPECT_EQ(resolve_batch(12, 2, 0, 3).accumulation, 2);
  EXPECT_EQ(resolve_batch(12, 2, 2, 3).accumulation, 2);
  // The worked example of 4M tokens at 4096: 1024 sequences.
  EXPECT_EQ(resolve_batch(1024, 2, 0, 128).accumulation, 4);
  EXPECT_EQ(resolve_batch(1024, 2, 0, 512).tokens_per_step(4096), 4194304);
}

TEST_F(SamplerTest, ValidationMeetsEachTargetOnceWhateverTheBatch) {
  const TokenFile file = file_of(1000);
  for (const TokenRange range :
       {TokenRange{903, 1000}, TokenRange{0, 25}, TokenRange{900, 949}, TokenRange{5, 31}}) {
    const ValidationSet set(file, range, 24);
    for (const Index rows : {1, 2, 5}) {
      std::vector<std::int32_t> targets;
      Batch batch;
      for (Index window = 0; window < set.windows(); window += rows) {
        std::vector<Index> windows(static_cast<std::size_t>(rows));
        std::iota(windows.begin(), windows.end(), window);
        set.fill(windows, batch);
        for (std::size_t i = 0; i < batch.targets.size(); ++i) {
          if (batch.targets[i] == masked_target) continue;
          targets.push_back(batch.targets[i]);
          EXPECT_EQ(batch.tokens[i], batch.targets[i] - 1);
        }
      }
      std::vector<std::int32_t> expected(static_cast<std::size_t>(range.size() - 1));
      std::iota(expected.begin(), expected.end(), static_cast<std::int32_t>(range.begin) + 1);
      EXPECT_EQ(targets, expected);
    }
  }
  EXPECT_NE(message_of<UsageError>([&] { ValidationSet(file, {976, 1000}, 24); }), "");
}

}  // namespace
}  // namespace escalera
