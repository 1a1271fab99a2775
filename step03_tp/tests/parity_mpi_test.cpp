// Step 3 under mpirun: pairwise-chosen cases through shared memory or MPI.
#include <gtest/gtest.h>

#include "step03_tp/tests/parity_run.h"
#include "tests/support/mpi_world.h"

namespace escalera {
namespace {

// The program is started with 2, 4 and 8 ranks; each start takes the cases for as many, in which every two choices meet.
TEST(TensorParallel, LossGradientsNormAndWeightsAreThoseOfOneProcess) {
  const std::vector<TpCase> cases = pairwise_tp_cases(test_world().size());
  ASSERT_FALSE(cases.empty());
  for (const TpCase& test : cases) {
    SCOPED_TRACE(name_of(test));
    const RunRecord record = run_case(test_world(), test);
    if (test_world().rank() == 0) expect_parity(record, test);
  }
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
