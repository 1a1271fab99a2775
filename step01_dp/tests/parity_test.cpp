// Step 1 on threads of one process: every mode gives the numbers of one process.
#include <gtest/gtest.h>

#include <mutex>

#include "common/comm/launch.h"
#include "step01_dp/tests/parity_suite.h"

namespace escalera {
namespace {

/// Runs `test` on `ranks` threads and returns every rank's record.
std::vector<RunRecord> run_on_threads(int ranks, const DpCase& test) {
  std::vector<RunRecord> records(static_cast<std::size_t>(ranks));
  const int code = launch({CommKind::threads, ranks}, [&](Communicator& world) {
    records[static_cast<std::size_t>(world.rank())] = run_case(world, test);
  });
  EXPECT_EQ(code, 0);
  return records;
}

class DataParallelParity : public testing::TestWithParam<std::tuple<int, DpCase>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, DataParallelParity,
                         testing::Combine(testing::Values(1, 2, 4), testing::ValuesIn(dp_cases())),
                         [](const auto& instance) {
                           return fmt::format("dp{}_{}", std::get<0>(instance.param), name_of(std::get<1>(instance.param)));
                         });

TEST_P(DataParallelParity, LossGradientsNormAndWeightsAreThoseOfOneProcess) {
  const auto& [ranks, test] = GetParam();
  expect_parity(run_on_threads(ranks, test), test);
}

TEST(DataParallel, AllModesAgreeBitForBit) {
  DpCase test;
  test.accumulation = 4;
  test.mode = DpMode::naive;
  const RunRecord naive = run_on_threads(4, test)[0];
  for (const DpMode mode : {DpMode::bucketed, DpMode::overlapped}) {
    for (const Index bucket_bytes : {Index{0}, Index{500'000}, Index{1} << 40}) {
      test.mode = mode;
      test.bucket_bytes = bucket_bytes;
      const RunRecord other = run_on_threads(4, test)[0];
      EXPECT_EQ(other.gradients, naive.gradients) << to_string(mode) << " " << bucket_bytes;
      EXPECT_EQ(other.weights, naive.weights) << to_string(mode) << " " << bucket_bytes;
    }
  }
}

TEST(DataParallel, TheSameLayoutTwiceGivesTheSameBits) {
  DpCase test;
  test.dtype = DType::float32;
  const RunRecord first = run_on_threads(2, test)[0], second = run_on_threads(2, test)[0];
  EXPECT_EQ(first.gradients, second.gradients);
  EXPECT_EQ(first.weights, second.weights);
}

class NarrowParity : public testing::TestWithParam<std::tuple<DType, int, DpMode>> {};
INSTANTIATE_TEST_SUITE_P(Types, NarrowParity,
                         testing::Combine(testing::Values(DType::float32, DType::bfloat16), testing::Values(1, 2, 4),
                                          testing::Values(DpMode::naive, DpMode::overlapped)),
                         [](const auto& instance) {
                           return fmt::format("{}_dp{}_{}", to_string(std::get<0>(instance.param)),
                                              std::get<1>(instance.param), to_string(std::get<2>(instance.param)));
                         });

TEST_P(NarrowParity, IsAsCloseToFloat64AsOneProcessIs) {
  DpCase test;
  test.dtype = test.rounding = std::get<0>(GetParam());
  test.mode = std::get<2>(GetParam());
  test.accumulation = 4;
  expect_parity(run_on_threads(std::get<1>(GetParam()), test), test);
}

class PlantedFault : public testing::TestWithParam<Fault> {};
INSTANTIATE_TEST_SUITE_P(Faults, PlantedFault,
                         testing::Values(Fault::averaged, Fault::local_mean, Fault::wrong_micro_batch,
                                                             Fault::dropped_gradient));

TEST_P(PlantedFault, IsFarOutsideTheTolerance) {
  DpCase test;
  test.accumulation = 4;
  const RunRecord& one = reference(test);
  test.fault = GetParam();
  if (test.fault == Fault::averaged || test.fault == Fault::local_mean) {
    // All replicas are wrong alike: only the comparison with one process can tell.
    EXPECT_GT(largest_error(run_on_threads(2, test)[0], one).value, 1e-3);
  } else {
    // Replicas drift apart, and the check that runs in every small training says so and ends the job.
    testing::internal::CaptureStderr();
    EXPECT_EQ(launch({CommKind::threads, 2}, [&](Communicator& world) { run_case(world, test); }), 1);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("replicas have drifted apart at step 1"), std::string::npos);
  }
}

}  // namespace
}  // namespace escalera
