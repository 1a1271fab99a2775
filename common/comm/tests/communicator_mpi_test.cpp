// Ranks as processes: the common checks through the shared window, or with ESCALERA_COMM_PATH=mpi through plain MPI.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "common/comm/launch.h"
#include "common/comm/tests/collective_checks.h"
#include "tests/support/mpi_world.h"

namespace escalera {
namespace {

class MpiCommunicatorTest : public testing::TestWithParam<NamedCheck> {};

TEST_P(MpiCommunicatorTest, AgreesWithPlainLoops) {
  HostDevice device;
  GetParam().check(test_world(), device);
}

INSTANTIATE_TEST_SUITE_P(All, MpiCommunicatorTest, testing::ValuesIn(all_checks()),
                         [](const auto& chosen) { return std::string(chosen.param.name); });

bool plain_mpi() {
  const char* path = std::getenv("ESCALERA_COMM_PATH");
  return path && std::strcmp(path, "mpi") == 0;
}

/// What each rank holds after the sums, of values whose sums depend on their order.
std::vector<std::vector<std::byte>> rough_sums(Communicator& world) {
  HostDevice device;
  std::vector<std::vector<std::byte>> results;
  for (const DType dtype : test_types) {
    for (const Index count : test_counts()) {
      TestBuffer reduced(device, count, dtype, world.rank(), 0, true);
      world.all_reduce(reduced.view());
      results.push_back(reduced.raw());
      TestBuffer input(device, count * world.size(), dtype, world.rank(), 5, true), output(device, count, dtype);
      world.reduce_scatter(input.view(), output.view());
      results.push_back(output.raw());
    }
  }
  return results;
}

// Processes and threads add in the same order, in whatever chunks the data goes.
TEST(MpiCommunicator, GivesTheSameBitsAsThreads) {
  Communicator& world = test_world();
  const auto results = rough_sums(world);
  EXPECT_EQ(results, rough_sums(world)) << "a second time";
  if (plain_mpi()) return;  // MPI chooses the order
  run_ranks(world.size(), [&](Communicator& threads) {
    const auto expected = rough_sums(threads);
    if (threads.rank() == world.rank()) {
      EXPECT_EQ(results, expected);
    }
  });
}

TEST(MpiCommunicator, MeasuresItselfAsTheLauncherAnnouncedIt) {
  EXPECT_EQ(launched_world_size(), test_world().size());
}

}  // namespace
}  // namespace escalera
