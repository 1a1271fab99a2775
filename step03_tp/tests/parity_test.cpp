// Step 3 on threads of one process: every layout and mode gives the numbers of one process.
#include <gtest/gtest.h>

#include "common/comm/launch.h"
#include "step03_tp/tests/parity_run.h"

namespace escalera {
namespace {

class TensorParallelParity : public testing::TestWithParam<TpCase> {};
INSTANTIATE_TEST_SUITE_P(Pairwise, TensorParallelParity, testing::ValuesIn(pairwise_tp_cases()),
                         [](const auto& instance) { return name_of(instance.param); });

/// Every t x sequence parallelism x overlap x kv heads, on the vocabulary that no t divides.
std::vector<TpCase> crossed_cases() {
  std::vector<TpCase> cases = tp_cases();
  std::erase_if(cases,
                [](const TpCase& test) { return test.vocabulary != 257 || test.tied != test.overlap; });
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Crossed, TensorParallelParity, testing::ValuesIn(crossed_cases()),
                         [](const auto& instance) { return name_of(instance.param); });

TEST_P(TensorParallelParity, LossGradientsNormAndWeightsAreThoseOfOneProcess) {
  expect_parity(run_on_threads(GetParam()), GetParam());
}

TEST(TensorParallel, TheSameLayoutTwiceGivesTheSameBits) {
  for (const bool overlap : {false, true}) {
    TpCase test;
    test.tp = 4;
    test.sequence_parallel = true;
    test.overlap = overlap;
    test.dtype = test.rounding = DType::float32;
    const RunRecord first = run_on_threads(test), second = run_on_threads(test);
    EXPECT_EQ(first.gradients, second.gradients);
    EXPECT_EQ(first.weights, second.weights);
  }
}

TEST(TensorParallel, WhatIsComputedAgainIsTheSameBits) {
  TpCase test;
  test.tp = 4;
  test.sequence_parallel = test.overlap = true;
  const RunRecord none = run_on_threads(test);
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    test.recompute = recompute;
    const RunRecord again = run_on_threads(test);
    EXPECT_EQ(none.gradients, again.gradients);
    EXPECT_EQ(none.weights, again.weights);
  }
}

std::vector<TpCase> narrow_cases() {
  std::vector<TpCase> cases;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const int tp : {2, 8}) {
      for (const bool sequence_parallel : {false, true}) {
        TpCase test;
        test.tp = tp;
        test.sequence_parallel = sequence_parallel;
        test.overlap = tp == 8;
        test.tied = tp == 2;
        test.dtype = test.rounding = dtype;
        cases.push_back(test);
      }
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Narrow, TensorParallelParity, testing::ValuesIn(narrow_cases()),
                         [](const auto& instance) { return name_of(instance.param); });

// ---- Planted faults -------------------------------------------------------------------------------------------------

struct Planted {
  Fault fault;
  bool sequence_parallel;
  int tp;
  bool drifts;  // the ranks' copies no longer agree: the check that runs in every small training ends the job
};
class PlantedFault : public testing::TestWithParam<Planted> {};
INSTANTIATE_TEST_SUITE_P(Faults, PlantedFault,
                         testing::Values(Planted{Fault::norm_not_summed, true, 2, true},
                                         Planted{Fault::norm_summed, false, 2, false},
                                         Planted{Fault::kv_not_summed, false, 4, true},
                                         Planted{Fault::kv_not_summed, true, 4, true},
                                         Planted{Fault::replicated_counted, false, 2, false},
                                         Planted{Fault::padding_in_softmax, false, 2, false},
                                         Planted{Fault::padding_in_softmax, true, 4, false}));

TEST_P(PlantedFault, IsFarOutsideTheTolerance) {
  const Planted& planted = GetParam();
  TpCase test;
  test.tp = planted.tp;
  test.sequence_parallel = planted.sequence_parallel;
  expect_parity(run_on_threads(test), test);  // so that it is the fault that is seen
  test.fault = planted.fault;
  if (planted.drifts) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(launch({CommKind::threads, test.ranks()}, [&](Communicator& world) { run_case(world, test); }),
              1);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("replicas have drifted apart at step 1"),
              std::string::npos);
  } else {
    const RunRecord& truth =
        parity_reference(tp_model(test), DType::float64, DType::float64, test.sequences());
    EXPECT_GT(largest_error(run_on_threads(test), truth).value, 1e-4);
  }
}

}  // namespace
}  // namespace escalera
