// The large matrix of parity_test.cpp: every mode with every other.
#include <gtest/gtest.h>

#include "step02_fsdp/tests/threads_run.h"

namespace escalera {
namespace {

class ShardedMatrix : public testing::TestWithParam<std::tuple<int, int, bool>> {};
INSTANTIATE_TEST_SUITE_P(All, ShardedMatrix,
                         testing::Combine(testing::Values(2, 3, 4, 8), testing::Values(0, 1, 2, 3),
                                          testing::Bool()),
                         [](const auto& instance) {
                           return fmt::format("dp{}_zero{}_{}", std::get<0>(instance.param),
                                              std::get<1>(instance.param),
                                              std::get<2>(instance.param) ? "tied" : "untied");
                         });

TEST_P(ShardedMatrix, LossGradientsNormAndWeightsAreThoseOfOneProcess) {
  const auto& [ranks, zero, tied] = GetParam();
  for (const ShardedCase& test : all_cases({ranks})) {
    if (test.sharding.zero != zero || test.tied != tied) continue;
    SCOPED_TRACE(name_of(test));
    expect_case(test);
  }
}

}  // namespace
}  // namespace escalera
