// The whole matrix of step 3 in float64.
#include <gtest/gtest.h>

#include "step03_tp/tests/parity_run.h"

namespace escalera {
namespace {

class TensorParallelMatrix : public testing::TestWithParam<TpCase> {};
INSTANTIATE_TEST_SUITE_P(Layouts, TensorParallelMatrix, testing::ValuesIn(tp_cases()),
                         [](const auto& instance) { return name_of(instance.param); });

TEST_P(TensorParallelMatrix, LossGradientsNormAndWeightsAreThoseOfOneProcess) {
  expect_parity(run_on_threads(GetParam()), GetParam());
}

}  // namespace
}  // namespace escalera
