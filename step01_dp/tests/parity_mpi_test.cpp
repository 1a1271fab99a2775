// Step 1 under mpirun: the same cases, through shared memory or MPI.
#include <gtest/gtest.h>

#include "step01_dp/tests/parity_suite.h"
#include "tests/support/mpi_world.h"

namespace escalera {
namespace {

// Rank 0 has what the ranks hold between them; run_case() itself compares replicas.
void expect_parity_on_rank_0(const DpCase& test) {
  const RunRecord record = run_case(test_world(), test);
  if (test_world().rank() == 0) expect_parity(record, test);
}

class DataParallelParity : public testing::TestWithParam<DpCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, DataParallelParity, testing::ValuesIn(dp_cases()),
                         [](const auto& instance) { return name_of(instance.param); });

TEST_P(DataParallelParity, LossGradientsNormAndWeightsAreThoseOfOneProcess) {
  expect_parity_on_rank_0(GetParam());
}

TEST(DataParallel, AllModesAgreeBitForBit) {
  DpCase test;
  test.accumulation = 4;
  test.mode = DpMode::naive;
  const RunRecord naive = run_case(test_world(), test);
  for (const DpMode mode : {DpMode::bucketed, DpMode::overlapped}) {
    test.mode = mode;
    const RunRecord other = run_case(test_world(), test);
    EXPECT_EQ(other.gradients, naive.gradients) << to_string(mode);
    EXPECT_EQ(other.weights, naive.weights) << to_string(mode);
  }
}

TEST(DataParallel, NarrowTypesAreAsCloseToFloat64AsOneProcessIs) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    DpCase test;
    test.dtype = test.rounding = dtype;
    test.accumulation = 4;
    expect_parity_on_rank_0(test);
  }
}

TEST(DataParallel, AnAveragedGradientIsFarOutsideTheTolerance) {
  if (test_world().size() == 1) return;  // the mean over one rank is the sum
  DpCase test;
  const RunRecord& one = reference(test);
  test.fault = Fault::averaged;
  const RunRecord wrong = run_case(test_world(), test);
  if (test_world().rank() == 0) {
    EXPECT_GT(largest_error(wrong, one).value, 1e-3);
  }
}

}  // namespace
}  // namespace escalera
