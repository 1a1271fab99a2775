// Ranks as processes that share a GPU: the common checks on device memory, through host memory and MPI.
#include <gtest/gtest.h>

#include "common/comm/tests/collective_checks.h"
#include "common/comm/tests/cuda/gpu_ranks.h"
#include "tests/support/mpi_world.h"

namespace escalera::cuda {
namespace {

class StagedOverMpi : public testing::TestWithParam<std::tuple<Carrier, NamedCheck>> {};

TEST_P(StagedOverMpi, AgreesWithPlainLoops) {
  const auto& [carrier, check] = GetParam();
  CudaDevice device(0);
  const auto tensors = make_carrier(carrier, test_world(), device);
  check.check(*tensors, device);
}

INSTANTIATE_TEST_SUITE_P(All, StagedOverMpi,
                         testing::Combine(testing::Values(Carrier::staged, Carrier::small_pieces),
                                          testing::ValuesIn(all_checks())),
                         [](const auto& chosen) {
                           return to_string(std::get<0>(chosen.param)) + std::get<1>(chosen.param).name;
                         });

}  // namespace
}  // namespace escalera::cuda
