#include "step02_fsdp/tests/threads_run.h"

#include <gtest/gtest.h>

namespace escalera {

std::vector<ShardedResult> run_on_threads(const ShardedCase& test) {
  std::vector<ShardedResult> results(static_cast<std::size_t>(test.ranks));
  const int code = launch({CommKind::threads, test.ranks}, [&](Communicator& world) {
    results[static_cast<std::size_t>(world.rank())] = run_case(world, test);
  });
  EXPECT_EQ(code, 0);
  return results;
}

void expect_predicted_everywhere(const std::vector<ShardedResult>& results, const ShardedCase& test) {
  TrafficPrediction all;
  for (const ShardedResult& result : results) {
    for (std::size_t i = 0; i < operation_count; i++) all.bytes[i] += result.traffic.bytes[i];
  }
  for (const ShardedResult& result : results) expect_predicted(result, all, test);
}

void expect_case(const ShardedCase& test) {
  const std::vector<ShardedResult> results = run_on_threads(test);
  expect_parity(results[0].record, sharded_model(test.tied), test.dtype, test.rounding, test.sequences());
  expect_predicted_everywhere(results, test);
}

}  // namespace escalera
