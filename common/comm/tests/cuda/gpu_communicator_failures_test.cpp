// Communicators of GPUs when something goes wrong: a rank throws, NCCL fails, ranks share a GPU, a wait is missing.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "common/comm/launch.h"
#include "common/comm/tests/collective_checks.h"
#include "common/comm/tests/cuda/gpu_ranks.h"
#include "common/comm/tests/cuda/planted_faults.h"

namespace escalera::cuda {
namespace {

using std::chrono::steady_clock;

/// What the job says when `body` is run on `ranks` that end with `code`, in time.
std::string last_words(Carrier carrier, int ranks, int code,
                       const std::function<void(Communicator& tensors, CudaDevice& device)>& body) {
  const auto begin = steady_clock::now();
  testing::internal::CaptureStderr();
  run_gpu_ranks(carrier, ranks, body, code);
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(30));
  return testing::internal::GetCapturedStderr();
}

class GpuFailure : public testing::TestWithParam<Carrier> {
  void SetUp() override {
    if (!enough_devices(GetParam(), 3)) GTEST_SKIP() << "3 devices are needed";
  }
};

INSTANTIATE_TEST_SUITE_P(All, GpuFailure, testing::Values(Carrier::staged, Carrier::nccl),
                         [](const auto& chosen) { return to_string(chosen.param); });

// ---- A rank throws -------------------------------------------------------------------------------------------------

TEST_P(GpuFailure, WakesRanksThatWaitForTheirDevice) {
  std::atomic<int> woken = 0;
  const auto fail_at = [&](const std::function<void(Communicator&, CudaDevice&)>& wait) {
    return last_words(GetParam(), 3, 1, [&](Communicator& world, CudaDevice& device) {
      set_phase(world, "step 3, backward");
      if (world.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        throw Error("planted");
      }
      try {
        wait(world, device);
      } catch (const PeerError&) {
        ++woken;
        throw;
      }
    });
  };
  const std::string expected = "rank 1, phase \"step 3, backward\": planted\n";
  EXPECT_EQ(fail_at([](Communicator& world, CudaDevice& device) {
              TestBuffer buffer(device, 1000, DType::float32, world.rank());
              world.all_reduce(buffer.view());
              buffer.get(0);
            }),
            expected);
  EXPECT_EQ(fail_at([](Communicator& world, CudaDevice& device) {
              TestBuffer buffer(device, 1000, DType::float32, world.rank());
              world.recv(buffer.view(), 1);
              device.synchronize();
            }),
            expected);
  EXPECT_EQ(fail_at([](Communicator& world, CudaDevice&) { world.split(0, world.rank(), "group"); }), expected);
  EXPECT_EQ(fail_at([](Communicator& world, CudaDevice&) { world.barrier(); }), expected);
  EXPECT_EQ(fail_at([](Communicator& world, CudaDevice&) { world.sum(1.0); }), expected);
  EXPECT_EQ(woken, 10);
}

// Works, groups, buffers and devices are destroyed on the way up without waiting for what never comes.
TEST_P(GpuFailure, LeavesNothingBehind) {
  EXPECT_EQ(last_words(GetParam(), 3, 1,
                       [](Communicator& world, CudaDevice& device) {
                         const auto group = world.split(0, world.rank(), "group");
                         TestBuffer buffer(device, 100'000, DType::float32, world.rank()), in(device, 10, DType::float32);
                         Work first = world.all_reduce_async(buffer.view());
                         Work second = group->all_reduce_async(buffer.view());
                         Work third = group->recv_async(in.view(), (world.rank() + 1) % 3);
                         if (world.rank() == 1) throw Error("planted");
                         group->barrier();
                       }),
            "rank 1: planted\n");
}

// The ranks that are done leave their groups in good order, and must not wait there for the one that is not.
TEST_P(GpuFailure, EndsRanksThatAreAlreadyDone) {
  EXPECT_EQ(last_words(GetParam(), 3, 1,
                       [](Communicator& world, CudaDevice& device) {
                         TestBuffer buffer(device, 1000, DType::float32, world.rank());
                         world.all_reduce(buffer.view());
                         buffer.get(0);
                         std::this_thread::sleep_for(std::chrono::milliseconds(world.rank() == 1 ? 100 : 0));
                         if (world.rank() == 1) throw Error("planted");
                       }),
            "rank 1: planted\n");
}

TEST_P(GpuFailure, AbortEndsTheJob) {
  EXPECT_EQ(last_words(GetParam(), 3, 1,
                       [](Communicator& world, CudaDevice& device) {
                         TestBuffer buffer(device, 1000, DType::float32, world.rank());
                         if (world.rank() == 2) world.abort("enough");
                         world.all_reduce(buffer.view());
                         buffer.get(0);
                       }),
            "rank 2: enough\n");
}

// ---- Mistakes ------------------------------------------------------------------------------------------------------

TEST(StagedFailure, NamesTheWholeOfAPiece) {
  const std::string words = last_words(Carrier::small_pieces, 2, 1, [](Communicator& world, CudaDevice& device) {
    TestBuffer buffer(device, 100'000, DType::float32);
    world.all_reduce(buffer.view(0, 100'000 - world.rank()));
  });
  EXPECT_NE(words.find("rank 0 calls all_reduce (sum) of 672 float32"), std::string::npos) << words;
  EXPECT_NE(words.find("this is a piece of all_reduce (sum) of "), std::string::npos) << words;
}

TEST(NcclFailure, RefusesTwoRanksOnOneDevice) {
  if (!enough_devices(Carrier::nccl, 2)) GTEST_SKIP() << "2 devices are needed";
  testing::internal::CaptureStderr();
  run_ranks(
      3,
      [](Communicator& world) {
        CudaDevice device(world.rank() == 2 ? 0 : world.rank());
        make_carrier(Carrier::nccl, world, device);
      },
      2);
  const std::string words = testing::internal::GetCapturedStderr();
  for (const char* part : {"ranks 0 and 2", "cuda:0 of ", "--comm mpi", "--comm threads"}) {
    EXPECT_NE(words.find(part), std::string::npos) << part << " in " << words;
  }
  EXPECT_EQ(std::count(words.begin(), words.end(), '\n'), 1) << words;
}

// NCCL reports on its own time what became of an operation that it has taken.
TEST(NcclFailure, EndsTheJobWithRankAndOperation) {
  if (!enough_devices(Carrier::nccl, 3)) GTEST_SKIP() << "3 devices are needed";
  const std::string words = last_words(Carrier::nccl, 3, 1, [](Communicator& world, CudaDevice& device) {
    TestBuffer buffer(device, 1000, DType::float32, world.rank());
    set_phase(world, "step 5, backward");
    world.all_reduce(buffer.view());
    buffer.get(0);
    if (world.rank() != 1) world.all_reduce(buffer.view());
    const PlantedFault fault(world.rank() == 2 ? Fault::nccl_error : Fault::none, device.stream());
    if (world.rank() == 1) world.barrier();
    device.synchronize();
  });
  for (const char* part : {"rank 2, phase \"step 5, backward\": ", "rank 2 of 3 in \"world\" on cuda:2",
                           "all_reduce of 4000 bytes", "number 2"}) {
    EXPECT_NE(words.find(part), std::string::npos) << part << " in " << words;
  }
  EXPECT_EQ(std::count(words.begin(), words.end(), '\n'), 1) << words;
}

/// Whether device 0 is simulated: then calls that do not fit together are found, where NCCL itself would wait for ever.
bool is_simulated() {
  cudaDeviceProp properties{};
  return cudaGetDeviceProperties(&properties, 0) == cudaSuccess && std::strstr(properties.name, "simulated");
}

TEST(NcclDeathTest, FindsCallsThatDiffer) {
  if (!is_simulated()) GTEST_SKIP() << "NCCL itself does not find them";
  const auto calls = [](const std::function<void(Communicator&, TestBuffer&)>& rank_0,
                        const std::function<void(Communicator&, TestBuffer&)>& rank_1) {
    run_gpu_ranks(Carrier::nccl, 2, [&](Communicator& world, CudaDevice& device) {
      TestBuffer buffer(device, 40, DType::float32, world.rank());
      (world.rank() == 0 ? rank_0 : rank_1)(world, buffer);
      device.synchronize();
    });
  };
  const auto sum = [](Communicator& world, TestBuffer& buffer) { world.all_reduce(buffer.view()); };
  EXPECT_DEATH(calls(sum, [](Communicator& world, TestBuffer& buffer) { world.all_reduce(buffer.view(0, 39)); }),
               "do not belong together.*of (40|39) float32.*of (40|39) float32");
  EXPECT_DEATH(calls(sum, [](Communicator& world, TestBuffer& buffer) { world.all_reduce(buffer.view(), ReduceOp::max); }),
               "do not belong together.*(sum|max).*(sum|max)");
  EXPECT_DEATH(calls([](Communicator& world, TestBuffer& buffer) { world.send(buffer.view(), 1); },
                     [](Communicator& world, TestBuffer& buffer) { world.recv(buffer.view(0, 3), 0); }),
               "do not belong together.*(ncclSend|ncclRecv)");
}

// ---- Missing waits -------------------------------------------------------------------------------------------------

/// Whether the streams of this machine do nothing before somebody waits for them, so that a forgotten wait shows.
bool streams_are_lazy() {
  const char* streams = std::getenv("SIMULATED_CUDA_STREAMS");
  return streams && std::strcmp(streams, "lazy") == 0;
}

/// Elements that are wrong after a sum over two ranks, on both together.
Index wrong_elements(Carrier carrier, Fault planted) {
  std::atomic<Index> wrong = 0;
  run_gpu_ranks(carrier, 2, [&](Communicator& world, CudaDevice& device) {
    TestBuffer input(device, 1000, DType::float32, world.rank()), buffer(device, 1000, DType::float32);
    device.synchronize();
    device.copy(buffer.view().data, input.view().data, input.view().bytes());
    {
      const PlantedFault fault(planted, device.stream());
      world.all_reduce(buffer.view());
    }
    // One rank after the other: what the first one waits for drags the other's part along, and nothing else of the other's.
    if (world.rank() == 1) world.barrier();
    const std::vector<double> sums = buffer.get(0, 1000);
    if (world.rank() == 0) world.barrier();
    for (Index i = 0; i < 1000; ++i) {
      if (sums[static_cast<std::size_t>(i)] != test_value(0, i) + test_value(1, i)) ++wrong;
    }
  });
  return wrong;
}

class MissingWait : public testing::TestWithParam<Carrier> {
  void SetUp() override {
    if (!streams_are_lazy()) GTEST_SKIP() << "shows only where streams are lazy";
    if (!enough_devices(GetParam(), 2)) GTEST_SKIP() << "2 devices are needed";
  }
};

INSTANTIATE_TEST_SUITE_P(All, MissingWait, testing::Values(Carrier::staged, Carrier::nccl),
                         [](const auto& chosen) { return to_string(chosen.param); });

TEST_P(MissingWait, ShowsWhereResultsAreNotAwaited) {
  EXPECT_EQ(wrong_elements(GetParam(), Fault::none), 0);
  EXPECT_GT(wrong_elements(GetParam(), Fault::results_not_awaited), 900) << "of a thousand, on the rank that reads first";
}

TEST_P(MissingWait, ShowsWhereInputsAreNotAwaited) {
  EXPECT_EQ(wrong_elements(GetParam(), Fault::none), 0);
  EXPECT_GT(wrong_elements(GetParam(), Fault::inputs_not_awaited), 900) << "of a thousand, on the rank that reads first";
}

}  // namespace
}  // namespace escalera::cuda
