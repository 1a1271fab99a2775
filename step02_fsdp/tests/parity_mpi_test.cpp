// Step 2 under mpirun: modes chosen such that any two choices meet, through shared memory or MPI.
#include <gtest/gtest.h>

#include "step02_fsdp/tests/sharded_run.h"
#include "tests/support/mpi_world.h"

namespace escalera {
namespace {

TrafficPrediction sum_over_ranks(const TrafficPrediction& mine) {
  TrafficPrediction all;
  for (std::size_t i = 0; i < operation_count; i++) all.bytes[i] = test_world().sum(mine.bytes[i]);
  return all;
}

void expect_case(const ShardedCase& test) {
  SCOPED_TRACE(name_of(test));
  const ShardedResult result = run_case(test_world(), test);
  if (test_world().rank() == 0) {
    expect_parity(result.record, sharded_model(test.tied), test.dtype, test.rounding, test.sequences());
  }
  expect_predicted(result, sum_over_ranks(result.traffic), test);
}

TEST(ShardedParity, LossGradientsNormAndWeightsAreThoseOfOneProcess) {
  const std::vector<ShardedCase> cases = pairwise_cases({test_world().size()});
  EXPECT_GE(cases.size(), 4U);
  for (const ShardedCase& test : cases) expect_case(test);
}

TEST(ShardedParity, NarrowTypesAreAsCloseToFloat64AsOneProcessIs) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    ShardedCase test;
    test.ranks = test.shards = test_world().size();
    test.dtype = test.rounding = dtype;
    expect_case(test);
  }
}

TEST(ShardedParity, AnOverwrittenShardIsFarOutsideTheTolerance) {
  ShardedCase test;
  test.ranks = test.shards = test_world().size();
  test.accumulation = 3;
  test.sharding.prefetch = 0;
  test.fault = Fault::overwritten_gradient;
  const ShardedResult result = run_case(test_world(), test);
  if (test_world().rank() != 0) return;
  const RunRecord& reference =
      parity_reference(sharded_model(test.tied), test.dtype, test.rounding, test.sequences());
  EXPECT_GT(largest_error(result.record, reference).value, 1e-3);
}

}  // namespace
}  // namespace escalera
