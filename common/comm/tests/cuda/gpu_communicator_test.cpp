// Communicators of GPUs: the common checks on device memory, and what they are beyond those of the host.
#include <gtest/gtest.h>

#include "common/comm/tests/collective_checks.h"
#include "common/comm/tests/cuda/gpu_ranks.h"

namespace escalera::cuda {
namespace {

using Case = std::tuple<Carrier, NamedCheck, int>;

class GpuCommunicatorTest : public testing::TestWithParam<Case> {};

TEST_P(GpuCommunicatorTest, AgreesWithPlainLoops) {
  const auto& [carrier, check, ranks] = GetParam();
  if (!enough_devices(carrier, ranks)) GTEST_SKIP() << ranks << " devices are needed";
  run_gpu_ranks(carrier, ranks, check.check);
}

std::string name_of(const testing::TestParamInfo<Case>& chosen) {
  const auto& [carrier, check, ranks] = chosen.param;
  return fmt::format("{}{}On{}", to_string(carrier), check.name, ranks);
}

/// Those that NCCL does not promise: see NcclCommunicator.
bool holds_for_nccl(const NamedCheck& check) {
  const std::string_view name = check.name;
  return name != "InterleavedGroups" && name != "NaNInMaximum" && name != "MismatchesAreNamed";
}

std::vector<NamedCheck> nccl_checks() {
  std::vector<NamedCheck> checks;
  for (const NamedCheck& check : all_checks()) {
    if (holds_for_nccl(check)) checks.push_back(check);
  }
  return checks;
}

INSTANTIATE_TEST_SUITE_P(Staged, GpuCommunicatorTest,
                         testing::Combine(testing::Values(Carrier::staged, Carrier::small_pieces),
                                          testing::ValuesIn(all_checks()), testing::Range(1, 5)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Nccl, GpuCommunicatorTest,
                         testing::Combine(testing::Values(Carrier::nccl), testing::ValuesIn(nccl_checks()),
                                          testing::Range(1, 5)),
                         name_of);

// ---- Both kinds ----------------------------------------------------------------------------------------------------

class AnyCarrier : public testing::TestWithParam<Carrier> {
  void SetUp() override {
    if (!enough_devices(GetParam(), ranks)) GTEST_SKIP() << ranks << " devices are needed";
  }

 protected:
  static constexpr int ranks = 3;
};

INSTANTIATE_TEST_SUITE_P(All, AnyCarrier, testing::Values(Carrier::staged, Carrier::small_pieces, Carrier::nccl),
                         [](const auto& chosen) { return to_string(chosen.param); });

// Operations read what the compute stream writes before the call, and it reads what they write after wait(), without the
// host waiting for anything in between.
TEST_P(AnyCarrier, IsOrderedWithTheComputeStream) {
  run_gpu_ranks(GetParam(), ranks, [](Communicator& world, CudaDevice& device) {
    constexpr Index count = 3000;
    const int size = world.size();
    TestBuffer mine(device, count, DType::float32, world.rank()), work(device, count, DType::float32);
    TestBuffer all(device, count * size, DType::float32), part(device, count, DType::float32);
    const auto copy = [&](TestBuffer& to, TestBuffer& from) {
      device.copy(to.view().data, from.view().data, to.view().bytes());
    };
    for (int round = 0; round < 3; ++round) {
      device.zero(work.view().data, work.view().bytes());
      copy(work, mine);
      Work summing = world.all_reduce_async(work.view());
      summing.wait();
      world.all_gather(work.view(), all.view());  // `size` times the sum
      device.zero(work.view().data, work.view().bytes());
      world.reduce_scatter(all.view(), part.view());
      copy(work, part);
      device.zero(all.view().data, all.view().bytes());
    }
    const auto expected = [&](Index i) {
      double sum = 0;
      for (int rank = 0; rank < size; ++rank) sum += test_value(rank, i);
      return sum * size;
    };
    expect_elements(work, 0, count, expected, "chain");
  });
}

// A pipeline's pattern: receives are posted early, and messages go both ways at the same time.
TEST_P(AnyCarrier, MessagesUpAndDownDoNotWaitForEachOther) {
  run_gpu_ranks(GetParam(), ranks, [](Communicator& world, CudaDevice& device) {
    constexpr Index count = 500;
    const int rank = world.rank(), last = world.size() - 1;
    TestBuffer up(device, count, DType::float32), down(device, count, DType::float32),
        received(device, count, DType::float32);
    Work from_above;
    if (rank < last) from_above = world.recv_async(down.view(), rank + 1);
    if (rank == 0) up.set(0, count, [](Index i) { return test_value(0, i); });
    if (rank > 0) world.recv(up.view(), rank - 1);
    if (rank < last) {
      world.send(up.view(), rank + 1);
      from_above.wait();
    } else {
      device.copy(down.view().data, up.view().data, up.view().bytes());
    }
    if (rank > 0) world.send(down.view(), rank - 1);
    expect_elements(
        down, 0, count, [](Index i) { return test_value(0, i); }, "there and back");
  });
}

TEST_P(AnyCarrier, OutlivesItsWorks) {
  run_gpu_ranks(GetParam(), ranks, [](Communicator& world, CudaDevice& device) {
    TestBuffer sum(device, 1000, DType::float32, world.rank()), in(device, 1000, DType::float32);
    const int next = (world.rank() + 1) % world.size(), previous = (world.rank() + world.size() - 1) % world.size();
    TestBuffer out(device, 1000, DType::float32, world.rank());
    Work summing, exchanging;
    {
      const auto group = world.split(0, world.rank(), "short-lived");
      summing = group->all_reduce_async(sum.view());
      exchanging = group->exchange_async({{true, next, out.view()}, {false, previous, in.view()}});
      group->barrier();
    }
    summing.wait();
    exchanging.wait();
    expect_elements(
        in, 0, 1000, [&](Index i) { return test_value(previous, i); }, "exchanged");
    EXPECT_EQ(sum.get(7), test_value(0, 7) + test_value(1, 7) + test_value(2, 7));
  });
}

// ---- Staged --------------------------------------------------------------------------------------------------------

TEST(StagedCommunicator, BooksItsPinnedMemoryAndGivesItBack) {
  run_ranks(2, [](Communicator& world) {
    CudaDevice device(0);
    const MemoryLedger& memory = device.memory();
    const auto held = [&] { return memory.current(MemoryCategory::communication); };
    {
      const auto tensors = make_carrier(Carrier::staged, world, device);
      TestBuffer small(device, 1000, DType::float32, world.rank()), large(device, 100'000, DType::float32, world.rank());
      EXPECT_EQ(held(), 0);
      tensors->all_reduce(small.view());
      EXPECT_EQ(held(), 4000);
      tensors->all_reduce(small.view());
      EXPECT_EQ(held(), 4000) << "used again";
      const int other = 1 - world.rank();
      for (int round = 0; round < 20; ++round) {
        TestBuffer in(device, 1000, DType::float32);
        tensors->exchange({{true, other, small.view()}, {false, other, in.view()}});
        device.synchronize();
      }
      EXPECT_EQ(held(), 4000 + 2 * 4096) << "each message starts at a multiple of 256";
      tensors->all_reduce(large.view());
      EXPECT_EQ(held(), 4000 + 2 * 4096 + 400'000);
    }
    EXPECT_EQ(held(), 0);
  });
}

TEST(StagedCommunicator, HoldsNoMoreThanTwoPieces) {
  run_ranks(3, [](Communicator& world) {
    CudaDevice device(0);
    const auto tensors = make_carrier(Carrier::small_pieces, world, device);
    for (const Index count : {10, 1000, 100, 100'000}) {
      TestBuffer buffer(device, count, DType::float32, world.rank()), all(device, 3 * count, DType::float32);
      tensors->all_reduce(buffer.view());
      tensors->all_gather(buffer.view(), all.view());
    }
    EXPECT_LE(device.memory().peak(MemoryCategory::communication), 2 * 4096);
  });
}

// The promise of the host's communicators, which NCCL does not give.
TEST(StagedCommunicator, GivesTheSameBitsAsTheHost) {
  for (const Carrier carrier : {Carrier::staged, Carrier::small_pieces}) {
    run_ranks(4, [&](Communicator& world) {
      HostDevice host;
      CudaDevice device(0);
      const auto tensors = make_carrier(carrier, world, device);
      for (const DType dtype : test_types) {
        TestBuffer expected(host, 20'011, dtype, world.rank(), 0, true), got(device, 20'011, dtype, world.rank(), 0, true);
        world.all_reduce(expected.view());
        tensors->all_reduce(got.view());
        EXPECT_EQ(got.raw(), expected.raw()) << to_string(dtype);
      }
    });
  }
}

}  // namespace
}  // namespace escalera::cuda
