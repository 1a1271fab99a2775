// Ranks as threads: the common checks on worlds of several sizes, and what happens when a rank fails.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "common/comm/launch.h"
#include "common/comm/reduce.h"
#include "common/comm/tests/collective_checks.h"

namespace escalera {
namespace {

class ThreadCommunicatorTest : public testing::TestWithParam<std::tuple<NamedCheck, int>> {};

TEST_P(ThreadCommunicatorTest, AgreesWithPlainLoops) {
  const auto& [check, ranks] = GetParam();
  run_ranks(ranks, [&check = check](Communicator& world) {
    HostDevice device;
    check.check(world, device);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadCommunicatorTest,
                         testing::Combine(testing::ValuesIn(all_checks()), testing::Range(1, 6)), [](const auto& chosen) {
                           return fmt::format("{}On{}", std::get<0>(chosen.param).name, std::get<1>(chosen.param));
                         });

// Added up in bfloat16, 256 + 1 is 256 again, fifteen times over. The exact sum, 271, lies between 270 and 272 there.
TEST(ThreadCommunicator, SumsBfloat16InFloat32) {
  run_ranks(16, [](Communicator& world) {
    HostDevice device;
    TestBuffer value(device, 1, DType::bfloat16);
    value.set(0, world.rank() == 0 ? 256 : 1);
    world.all_reduce(value.view());
    EXPECT_EQ(value.get(0), 272);
  });
}

TEST(ThreadCommunicator, GivesTheSameBitsEveryTime) {
  run_ranks(5, [](Communicator& world) {
    HostDevice device;
    TestBuffer once(device, 10007, DType::float32, world.rank(), 0, true), twice = once;
    world.all_reduce(once.view());
    world.all_reduce(twice.view());
    EXPECT_EQ(once.raw(), twice.raw());
    EXPECT_TRUE(world.all_equal(once.raw()));
  });
}

// The fault that the test above must see: another order of summation gives other bits.
TEST(ThreadCommunicator, OrderOfSummationShows) {
  HostDevice device;
  TestBuffer a(device, 1000, DType::float32, 0, 0, true), b(device, 1000, DType::float32, 1, 0, true),
      c(device, 1000, DType::float32, 2, 0, true), forwards(device, 1000, DType::float32),
      backwards(device, 1000, DType::float32);
  const void* sources[] = {a.view().data, b.view().data, c.view().data};
  const void* reversed[] = {sources[2], sources[1], sources[0]};
  reduce_in_rank_order(sources, forwards.view().data, 1000, DType::float32, ReduceOp::sum);
  reduce_in_rank_order(reversed, backwards.view().data, 1000, DType::float32, ReduceOp::sum);
  EXPECT_NE(forwards.raw(), backwards.raw());
}

// The fault that the common checks must see: one wrong element.
TEST(ThreadCommunicator, OneWrongElementShows) {
  HostDevice device;
  TestBuffer buffer(device, 1000, DType::bfloat16, 3);
  const auto expected = [](Index i) { return test_value(3, i); };
  expect_elements(buffer, 0, 1000, expected, "as it was");
  buffer.set(999, buffer.get(999) + 1);
  EXPECT_NONFATAL_FAILURE(expect_elements(buffer, 0, 1000, expected, "planted"), "planted: element 999");
}

// ---- Failures ------------------------------------------------------------------------------------------------------

TEST(ThreadCommunicatorFailure, WakesRanksThatWaitAnywhere) {
  std::atomic<int> woken = 0;
  testing::internal::CaptureStderr();
  run_ranks(
      5,
      [&](Communicator& world) {
        const auto group = world.split(0, world.rank(), "group");
        HostDevice device;
        TestBuffer buffer(device, 1000, DType::float32, world.rank());
        set_phase(world, "step 3, backward");
        if (world.rank() == 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          throw Error("planted");
        }
        try {
          if (world.rank() == 0) world.all_reduce(buffer.view());
          if (world.rank() == 1) group->barrier();
          if (world.rank() == 3) world.recv(buffer.view(), 2);
          if (world.rank() == 4) group->all_reduce_async(buffer.view()).wait();
        } catch (const PeerError&) {
          ++woken;
          throw;
        }
      },
      1);
  EXPECT_EQ(woken, 4);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "rank 2, phase \"step 3, backward\": planted\n");
}

TEST(ThreadCommunicatorFailure, LeavesNoOperationOnMemoryThatIsGone) {
  testing::internal::CaptureStderr();
  run_ranks(
      3,
      [&](Communicator& world) {
        const auto group = world.split(0, world.rank(), "group");
        HostDevice device;
        TestBuffer buffer(device, 100000, DType::float32, world.rank());
        Work first = group->all_reduce_async(buffer.view());
        Work second = group->recv_async(buffer.view(), (world.rank() + 1) % 3);
        if (world.rank() == 1) throw Error("planted");
        group->barrier();
      },
      1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "rank 1: planted\n");
}

TEST(ThreadCommunicatorFailure, NamesARankThatHasLeft) {
  testing::internal::CaptureStderr();
  run_ranks(
      2,
      [](Communicator& world) {
        if (world.rank() == 0) world.barrier();
      },
      1);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("waits in barrier, but rank 1 has left the group"),
            std::string::npos);
  testing::internal::CaptureStderr();
  run_ranks(
      2,
      [](Communicator& world) {
        float value = 0;
        if (world.rank() == 0) world.recv({&value, 1, DType::float32}, 1);
      },
      1);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("waits to receive 1 float32 from rank 1, which has left"),
            std::string::npos);
}

TEST(ThreadCommunicatorFailure, NamesRanksThatWaitForEachOther) {
  for (const bool late : {false, true}) {
    testing::internal::CaptureStderr();
    run_ranks(
        2,
        [&](Communicator& world) {
          float value = 0;
          if (late == (world.rank() == 0)) std::this_thread::sleep_for(std::chrono::milliseconds(30));
          if (world.rank() == 0) world.all_reduce({&value, 1, DType::float32});
          if (world.rank() == 1) world.recv({&value, 1, DType::float32}, 0);
        },
        1);
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "rank 0: in \"world\" rank 0 waits in all_reduce (sum) of 1 float32, but rank 1 waits to receive 1 "
              "float32 from rank 0\n");
  }
}

TEST(ThreadCommunicatorFailure, NamesBothEndsOfAMismatchedTransfer) {
  testing::internal::CaptureStderr();
  run_ranks(
      2,
      [](Communicator& world) {
        HostDevice device;
        TestBuffer buffer(device, 8, DType::float32, 0);
        if (world.rank() == 0) world.send(buffer.view(), 1);
        if (world.rank() == 1) world.recv(buffer.view(0, 7), 0);
      },
      1);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("rank 0 sends 8 float32 to rank 1, which expects 7 float32"),
            std::string::npos);
}

TEST(ThreadCommunicatorFailure, PrintsABadRequestOnce) {
  testing::internal::CaptureStderr();
  run_ranks(
      4, [](Communicator&) { throw UsageError("bad request"); }, 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "bad request\n");
  testing::internal::CaptureStderr();
  run_ranks(
      4,
      [](Communicator& world) {
        if (world.rank() == 3) throw UsageError("only here");
        world.barrier();
      },
      2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "only here\n");
}

TEST(ThreadCommunicator, CarriesHundredsOfRanks) {
  run_ranks(128, [](Communicator& world) {
    const auto group = world.split(world.rank() % 8, world.rank(), "group");
    HostDevice device;
    TestBuffer buffer(device, 501, DType::float32, world.rank());
    group->all_reduce(buffer.view());
    EXPECT_EQ(world.sum(Index{1}), 128);
  });
}

}  // namespace
}  // namespace escalera
