// Step 3 under mpirun: pairwise-chosen cases through shared memory or MPI.
#include <gtest/gtest.h>

#include "step03_tp/tests/parity_run.h"
#include "tests/support/mpi_world.h"

namespace escalera {
namespace {

class TensorParallelParity : public testing::TestWithParam<TpCase> {};
INSTANTIATE_TEST_SUITE_P(Pairwise, TensorParallelParity, testing::ValuesIn(pairwise_tp_cases(8)),
                         [](const auto& instance) { return name_of(instance.param); });

TEST_P(TensorParallelParity, LossGradientsNormAndWeightsAreThoseOfOneProcess) {
  // The program is started with 2, 4 and 8 ranks; each start takes the cases that need as many.
  if (GetParam().ranks() != test_world().size()) return;
  const RunRecord record = run_case(test_world(), GetParam());
  if (test_world().rank() == 0) expect_parity(record, GetParam());
}

TEST(TensorParallel, NarrowTypesAreAsCloseToFloat64AsOneProcessIs) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    TpCase test;
    test.tp = test_world().size();
    test.sequence_parallel = test.overlap = dtype == DType::bfloat16;
    test.dtype = test.rounding = dtype;
    const RunRecord record = run_case(test_world(), test);
    if (test_world().rank() == 0) expect_parity(record, test);
  }
}

}  // namespace
}  // namespace escalera
