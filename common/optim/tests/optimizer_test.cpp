// Updates of whole buckets and of shards that cut through parameters.
#include <gtest/gtest.h>

#include <cmath>

#include "common/optim/optimizer.h"

namespace escalera {
namespace {

/// A matrix [3, 5], a norm [1, 7] and another matrix [2, 4] in one bucket.
struct OneBucket {
  std::unique_ptr<Ops> ops = make_cpu_ops({});
  std::deque<Bucket> buckets;
  OneBucket(Index shard_begin, Index shard_size) {
    Bucket& bucket = buckets.emplace_back();
    bucket.add({"matrix", 3, 5, Parameter::Split::none, {0, 5, 5}, {}, true});
    bucket.add({"norm", 1, 7, Parameter::Split::none, {0, 7, 7}, {}, false});
    bucket.add({"other", 2, 4, Parameter::Split::none, {0, 4, 4}, {}, true});
    Device& device = ops->device();
    bucket.shard_begin = shard_begin;
    bucket.shard_size = shard_size;
    bucket.weights = device.zeros(1, bucket.size, DType::float64, MemoryCategory::parameters);
    bucket.gradients = device.zeros(1, bucket.size, DType::float64, MemoryCategory::gradients);
    std::vector<double> values, gradients;
    for (Index i = 0; i < bucket.size; i++) {
      values.push_back(1 + 0.1 * static_cast<double>(i));
      gradients.push_back(std::sin(static_cast<double>(i)));
    }
    from_host(device, values, bucket.weights);
    from_host(device, gradients, bucket.gradients);
    bucket.master = bucket.weight_shard = bucket.weights.slice_flat(shard_begin, shard_size);
    bucket.gradient_shard = bucket.gradients.slice_flat(shard_begin, shard_size);
  }
  std::vector<double> weights() { return to_host(ops->device(), buckets[0].weights); }
};

OptimizerSettings settings(OptimizerSettings::Kind kind) {
  OptimizerSettings result;
  result.kind = kind;
  result.weight_decay = 0.1;
  return result;
}

class AnyOptimizer : public testing::TestWithParam<OptimizerSettings::Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, AnyOptimizer,
                         testing::Values(OptimizerSettings::Kind::adamw, OptimizerSettings::Kind::sgd));

TEST_P(AnyOptimizer, ShardsUpdateTheirElementsAsTheWholeWould) {
  OneBucket whole(0, 30);
  const auto optimizer = make_optimizer(*whole.ops, whole.buckets, settings(GetParam()));
  for (int step = 0; step < 3; step++) optimizer->update(0.1, 0.5);
  const std::vector<double> expected = whole.weights();
  for (const auto& [begin, size] : {std::pair<Index, Index>{0, 11}, {11, 9}, {20, 10}, {17, 1}}) {
    OneBucket part(begin, size);
    const std::vector<double> before = part.weights();
    const auto sharded = make_optimizer(*part.ops, part.buckets, settings(GetParam()));
    for (int step = 0; step < 3; step++) sharded->update(0.1, 0.5);
    const std::vector<double> after = part.weights();
    for (std::size_t i = 0; i < after.size(); i++) {
      const bool mine = static_cast<Index>(i) >= begin && static_cast<Index>(i) < begin + size;
      EXPECT_EQ(after[i], mine ? expected[i] : before[i]) << "element " << i << " of shard at " << begin;
    }
  }
}

TEST_P(AnyOptimizer, WithoutGradientOnlyDecayingParametersShrink) {
  OneBucket bucket(0, 30);
  bucket.ops->scale(bucket.buckets[0].gradients, 0);
  const std::vector<double> before = bucket.weights();
  make_optimizer(*bucket.ops, bucket.buckets, settings(GetParam()))->update(0.1, 1);
  const std::vector<double> after = bucket.weights();
  for (std::size_t i = 0; i < after.size(); i++) {
    const bool norm = i >= 15 && i < 22;
    EXPECT_DOUBLE_EQ(after[i], norm ? before[i] : before[i] * 0.99);
  }
}

TEST(Sgd, MovesAgainstTheScaledGradient) {
  OneBucket bucket(0, 30);
  const std::vector<double> before = bucket.weights();
  make_optimizer(*bucket.ops, bucket.buckets, settings(OptimizerSettings::Kind::sgd))->update(0.2, 0.25);
  EXPECT_NEAR(bucket.weights()[16], before[16] - 0.2 * 0.25 * std::sin(16.0), 1e-15);
  EXPECT_NEAR(bucket.weights()[2], before[2] * 0.98 - 0.2 * 0.25 * std::sin(2.0), 1e-15);
}

TEST(AdamW, FirstStepMovesByTheLearningRateInTheDirectionOfTheGradient) {
  OneBucket bucket(0, 30);
  const std::vector<double> before = bucket.weights();
  make_optimizer(*bucket.ops, bucket.buckets, settings(OptimizerSettings::Kind::adamw))->update(0.01, 1);
  const double gradient = std::sin(17.0);
  // Bias correction makes the first moments g and g^2, so the step is g / (|g| + epsilon).
  EXPECT_NEAR(bucket.weights()[17], before[17] - 0.01 * gradient / (std::abs(gradient) + 1e-8), 1e-15);
}

TEST(ClipFactor, ScalesOnlyWhatIsTooLong) {
  EXPECT_EQ(clip_factor(2, 1), 0.5);
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(5, 0), 1) << "0 means no clipping";
}

}  // namespace
}  // namespace escalera
