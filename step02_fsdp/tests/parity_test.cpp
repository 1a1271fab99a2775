// Step 2 on threads of one process: every mode gives the numbers of one process, in the memory and with the traffic that the
// formulas say.
#include <gtest/gtest.h>

#include "step02_fsdp/tests/threads_run.h"

namespace escalera {
namespace {

class ShardedParity : public testing::TestWithParam<ShardedCase> {};
INSTANTIATE_TEST_SUITE_P(Pairwise, ShardedParity, testing::ValuesIn(pairwise_cases({2, 3, 4, 8})),
                         [](const auto& instance) { return name_of(instance.param); });

// C04 (clipping is active), C09 (same start)
TEST_P(ShardedParity, LossGradientsNormAndWeightsAreThoseOfOneProcess) {
  expect_case(GetParam());
}

ShardedCase usual(int ranks = 4) {
  ShardedCase test;
  test.ranks = test.shards = ranks;
  test.accumulation = 3;
  return test;
}

void expect_same_bits(const ShardedCase& a, const ShardedCase& b) {
  const RunRecord one = run_on_threads(a)[0].record, other = run_on_threads(b)[0].record;
  EXPECT_EQ(one.losses, other.losses);
  EXPECT_EQ(one.gradients, other.gradients);
  EXPECT_EQ(one.weights, other.weights);
}

TEST(Sharded, Stage2And3GiveTheSameBits) {
  ShardedCase two = usual(), three = usual();
  two.sharding.zero = 2;
  expect_same_bits(two, three);
  two.shards = three.shards = 2;
  two.dtype = two.rounding = three.dtype = three.rounding = DType::bfloat16;
  expect_same_bits(two, three);
}

TEST(Sharded, PrefetchingReshardingAndRecomputingChangeNoBit) {
  ShardedCase other = usual();
  other.sharding.prefetch = 0;
  expect_same_bits(usual(), other);
  other.sharding.prefetch = 100;
  other.sharding.reshard_after_forward = false;
  other.recompute = Recompute::full;
  expect_same_bits(usual(), other);
}

TEST(Sharded, TheSameLayoutTwiceGivesTheSameBits) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    ShardedCase test = usual(3);
    test.dtype = test.rounding = dtype;
    expect_same_bits(test, test);
  }
}

class NarrowParity : public testing::TestWithParam<std::tuple<DType, int, int>> {};
INSTANTIATE_TEST_SUITE_P(Types, NarrowParity,
                         testing::Combine(testing::Values(DType::float32, DType::bfloat16),
                                          testing::Values(1, 2, 3), testing::Values(2, 4)),
                         [](const auto& instance) {
                           return fmt::format("{}_zero{}_shards{}", to_string(std::get<0>(instance.param)),
                                              std::get<1>(instance.param), std::get<2>(instance.param));
                         });

TEST_P(NarrowParity, IsAsCloseToFloat64AsOneProcessIs) {
  ShardedCase test = usual();
  test.dtype = test.rounding = std::get<0>(GetParam());
  test.sharding.zero = std::get<1>(GetParam());
  test.shards = std::get<2>(GetParam());
  expect_case(test);
}

class ReduceInBfloat16 : public testing::TestWithParam<std::tuple<int, Index>> {};
INSTANTIATE_TEST_SUITE_P(Stages, ReduceInBfloat16,
                         testing::Combine(testing::Values(0, 1, 2, 3), testing::Values(0, 1)),
                         [](const auto& instance) {
                           return fmt::format("zero{}_prefetch{}", std::get<0>(instance.param),
                                              std::get<1>(instance.param));
                         });

// Rounding what travels costs digits: a half unit in the last of bfloat16's 8 for each of the (at most two) sums.
TEST_P(ReduceInBfloat16, CostsAsManyDigitsAsItMust) {
  ShardedCase test = usual();
  test.dtype = test.rounding = DType::float32;
  test.sharding.zero = std::get<0>(GetParam());
  test.sharding.prefetch = std::get<1>(GetParam());
  test.sharding.reduce_dtype = DType::bfloat16;
  test.shards = test.sharding.zero == 0 ? 1 : 2;
  const std::vector<ShardedResult> results = run_on_threads(test);
  expect_predicted_everywhere(results, test);
  const RunRecord& exact =
      parity_reference(sharded_model(test.tied), DType::float64, test.rounding, test.sequences());
  const LargestError error = largest_error(results[0].record, exact);
  EXPECT_LT(error.value, 3.0 / 256) << error.where;
  EXPECT_GT(error.value, 1e-4) << "nothing was rounded";
}

class PlantedFault : public testing::TestWithParam<Fault> {};
INSTANTIATE_TEST_SUITE_P(Faults, PlantedFault,
                         testing::Values(Fault::shifted_shard, Fault::overwritten_gradient,
                                         Fault::replicas_left_out));

TEST_P(PlantedFault, IsFarOutsideTheTolerance) {
  ShardedCase test = usual();
  test.shards = 2;
  test.sharding.prefetch = 0;
  test.fault = GetParam();
  if (test.fault == Fault::replicas_left_out) {
    // Replicas drift apart, and the check that runs in every small training says so and ends the job.
    testing::internal::CaptureStderr();
    EXPECT_EQ(launch({CommKind::threads, test.ranks}, [&](Communicator& world) { run_case(world, test); }),
              1);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("replicas have drifted apart at step 1"),
              std::string::npos);
  } else {
    // All replicas are wrong alike: only the comparison with one process can tell.
    const RunRecord& reference = parity_reference(sharded_model(test.tied), test.dtype, test.rounding);
    EXPECT_GT(largest_error(run_on_threads(test)[0].record, reference).value, 1e-3);
  }
}

TEST(PlantedFault, WeightsThatAreNeverReleasedAreSeenInTheCountersAlone) {
  ShardedCase test = usual();
  const Index good = run_on_threads(test)[0].gathered;
  test.fault = Fault::never_released;
  const ShardedResult wrong = run_on_threads(test)[0];
  expect_parity(wrong.record, sharded_model(test.tied), test.dtype, test.rounding);  // the numbers are right
  EXPECT_EQ(good, gathered_peak(formulas_of(test)));
  EXPECT_GT(wrong.gathered, good);
  EXPECT_GT(wrong.gathered_units, test.sharding.prefetch + 1);
}

}  // namespace
}  // namespace escalera
