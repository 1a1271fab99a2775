// main() of the GoogleTest programs that run on several MPI ranks: scripts/launch -n 4 common_comm_mpi_tests
//
// Every rank runs every test. Rank 0 reports as GoogleTest does; the others speak only when something fails,
// and say who they are. mpirun ends with an error as soon as one rank does, so a failure anywhere is a
// failure of the ctest test.

#include <gtest/gtest.h>

#include <cstdio>

#include "common/comm/launch.h"
#include "tests/support/mpi_world.h"

namespace escalera {
namespace {

Communicator* current_world = nullptr;

/// Prints failures with the rank they happened on, and nothing else.
class FailuresWithRank : public testing::EmptyTestEventListener {
 public:
  explicit FailuresWithRank(int rank) : rank_(rank) {}

  void OnTestStart(const testing::TestInfo& test) override { test_ = &test; }

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s.%s failed\n%s:%d\n%s\n", rank_, test_ ? test_->test_suite_name() : "?",
                 test_ ? test_->name() : "?", result.file_name() ? result.file_name() : "?",
                 result.line_number(), result.summary());
  }

 private:
  int rank_;
  const testing::TestInfo* test_ = nullptr;
};

}  // namespace

Communicator& test_world() {
  return *current_world;
}

}  // namespace escalera

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int result = 1;
  escalera::LaunchOptions options;
  options.kind = escalera::CommKind::mpi;
  const int code = escalera::launch(options, [&result](escalera::Communicator& world) {
    escalera::current_world = &world;
    if (world.rank() != 0) {
      testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
      delete listeners.Release(listeners.default_result_printer());
      listeners.Append(new escalera::FailuresWithRank(world.rank()));
    }
    result = RUN_ALL_TESTS();
    escalera::current_world = nullptr;
  });
  return code != 0 ? code : result;
}
