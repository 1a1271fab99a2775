// The NCCL stand-in with ranks as threads: what it computes, in what order transfers may come, and how faults are reported.
#include <cuda_bf16.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "tests/simulated_cuda/tests/sample_kernels.h"
#include "tests/simulated_cuda/tests/support.h"

namespace simulated_cuda {
namespace {

#define NCCL_OK(call) ASSERT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr)

/// A rank with its communicator and stream; the current device is the rank's.
struct Rank {
  Rank(int number_, int size_, const ncclUniqueId& id) : number(number_), size(size_) {
    EXPECT_EQ(ncclCommInitRank(&comm, size, id, number), ncclSuccess) << ncclGetLastError(nullptr);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  }
  ~Rank() {
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);  // nothing, if it was aborted
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int number, size;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
};

void with_ranks(int size, const std::function<void(Rank&)>& body) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  run_ranks(size, [&](int number) {
    Rank rank(number, size, id);
    body(rank);
  });
}

class Nccl : public testing::TestWithParam<bool> {
 protected:
  Nccl() {
    settings_->lazy_streams = GetParam();
    settings_->nccl_timeout_seconds = 60;
  }
  ScopedSettings settings_;
};

INSTANTIATE_TEST_SUITE_P(Streams, Nccl, testing::Bool(),
                         [](const auto& parameters) { return std::string(parameters.param ? "lazy" : "eager"); });

std::vector<float> values_of(int rank, std::size_t count) {
  return random_floats(count, static_cast<unsigned>(rank) + 1);
}

// ---- Collectives ---------------------------------------------------------------------------------------------------

TEST_P(Nccl, SumsInTheOrderOfRanks) {
  for (const int size : {1, 2, 4}) {
    constexpr std::size_t count = 1500;
    std::vector<float> expected = values_of(0, count);
    for (int rank = 1; rank < size; ++rank) {
      const std::vector<float> values = values_of(rank, count);
      for (std::size_t i = 0; i < count; ++i) expected[i] += values[i];
    }
    with_ranks(size, [&](Rank& rank) {
      DeviceArray<float> x(values_of(rank.number, count)), y(count);
      NCCL_OK(ncclAllReduce(x.data(), y.data(), count, ncclFloat32, ncclSum, rank.comm, rank.stream));
      CUDA_OK(cudaStreamSynchronize(rank.stream));
      EXPECT_EQ(y.values_now(), expected);
      NCCL_OK(ncclAllReduce(x.data(), x.data(), count, ncclFloat32, ncclSum, rank.comm, rank.stream));
      CUDA_OK(cudaStreamSynchronize(rank.stream));
      EXPECT_EQ(x.values_now(), expected);
    });
  }
}

TEST_P(Nccl, RoundsBfloat16SumsOnce) {
  // 256 + 0.75 + 0.75 is 257.5, which rounds to 258; added in bfloat16 one after the other it would stay 256.
  with_ranks(3, [&](Rank& rank) {
    DeviceArray<__nv_bfloat16> x(std::vector<__nv_bfloat16>(4, __float2bfloat16(rank.number == 0 ? 256.0f : 0.75f)));
    NCCL_OK(ncclAllReduce(x.data(), x.data(), 4, ncclBfloat16, ncclSum, rank.comm, rank.stream));
    CUDA_OK(cudaStreamSynchronize(rank.stream));
    EXPECT_EQ(__bfloat162float(x.values_now()[3]), 258.0f);
  });
}

TEST_P(Nccl, KnowsMaximaAndIntegers) {
  with_ranks(3, [&](Rank& rank) {
    DeviceArray<std::int64_t> x({rank.number, -rank.number, std::int64_t{1} << (40 + rank.number)});
    NCCL_OK(ncclAllReduce(x.data(), x.data(), 3, ncclInt64, ncclMax, rank.comm, rank.stream));
    DeviceArray<std::uint8_t> bytes(std::vector<std::uint8_t>{100});
    NCCL_OK(ncclAllReduce(bytes.data(), bytes.data(), 1, ncclUint8, ncclSum, rank.comm, rank.stream));
    CUDA_OK(cudaStreamSynchronize(rank.stream));
    EXPECT_EQ(x.values_now(), (std::vector<std::int64_t>{2, 0, std::int64_t{1} << 42}));
    EXPECT_EQ(bytes.values_now()[0], 44);  // 300 - 256
  });
}

TEST_P(Nccl, ScattersGathersAndBroadcasts) {
  constexpr int size = 3;
  constexpr std::size_t count = 5;
  std::vector<float> sum(size * count, 0.0f);
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> values = values_of(rank, size * count);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  with_ranks(size, [&](Rank& rank) {
    DeviceArray<float> x(values_of(rank.number, size * count)), part(count), all(size * count),
        root(values_of(rank.number, count));
    const std::size_t own = static_cast<std::size_t>(rank.number) * count;
    NCCL_OK(ncclReduceScatter(x.data(), part.data(), count, ncclFloat32, ncclSum, rank.comm, rank.stream));
    NCCL_OK(ncclAllGather(part.data(), all.data(), count, ncclFloat32, rank.comm, rank.stream));
    // The same in place.
    NCCL_OK(ncclReduceScatter(x.data(), x.data() + own, count, ncclFloat32, ncclSum, rank.comm, rank.stream));
    NCCL_OK(ncclAllGather(x.data() + own, x.data(), count, ncclFloat32, rank.comm, rank.stream));
    NCCL_OK(ncclBroadcast(root.data(), root.data(), count, ncclFloat32, 2, rank.comm, rank.stream));
    DeviceArray<float> reduced(count);
    NCCL_OK(ncclReduce(root.data(), rank.number == 1 ? reduced.data() : nullptr, count, ncclFloat32, ncclSum, 1, rank.comm,
                       rank.stream));
    CUDA_OK(cudaStreamSynchronize(rank.stream));
    EXPECT_EQ(all.values_now(), sum);
    EXPECT_EQ(x.values_now(), sum);
    EXPECT_EQ(root.values_now(), values_of(2, count));
    if (rank.number == 1) {
      EXPECT_NEAR(reduced.values_now()[4], 3.0f * values_of(2, count)[4], 1e-6);
    }
  });
}

// ---- Order ---------------------------------------------------------------------------------------------------------

// The rank's own kernel writes what is sent, and reads what came, on the stream of the collective.
TEST_P(Nccl, RunsInTheOrderOfItsStream) {
  with_ranks(4, [&](Rank& rank) {
    DeviceArray<float> x(std::vector<float>(8, 1.0f)), y(8);
    for (int round = 0; round < 3; ++round) {
      CUDA_OK(sample::scale(y.data(), x.data(), static_cast<float>(rank.number), 8, rank.stream));
      NCCL_OK(ncclAllReduce(y.data(), y.data(), 8, ncclFloat32, ncclSum, rank.comm, rank.stream));
      CUDA_OK(sample::scale(x.data(), y.data(), 1.0f / 6.0f, 8, rank.stream));
    }
    CUDA_OK(cudaStreamSynchronize(rank.stream));
    EXPECT_NEAR(x.values_now()[0], 1.0f, 1e-6);
  });
}

// As on a GPU, calls come back at once: rank 0 goes on by itself, and only then calls rank 1 what rank 0 waits for.
TEST_P(Nccl, CallsDoNotWaitForOtherRanks) {
  std::atomic<bool> called = false;
  with_ranks(2, [&](Rank& rank) {
    DeviceArray<float> x(std::vector<float>(8, 1.0f));
    if (rank.number == 1) {
      while (!called) std::this_thread::yield();
    }
    NCCL_OK(ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, rank.comm, rank.stream));
    called = true;
    CUDA_OK(cudaStreamSynchronize(rank.stream));
    EXPECT_EQ(x.values_now()[7], 2.0f);
  });
}

// Rank 1 has called, but its thread does not wait for anything before rank 0 is through: its stream has to move by itself.
TEST_P(Nccl, StreamsOfOtherRanksMoveBySelf) {
  std::atomic<bool> done = false;
  with_ranks(2, [&](Rank& rank) {
    DeviceArray<float> x(std::vector<float>(8, 1.0f));
    CUDA_OK(sample::scale(x.data(), x.data(), 3.0f, 8, rank.stream));
    NCCL_OK(ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, rank.comm, rank.stream));
    if (rank.number == 0) {
      CUDA_OK(cudaStreamSynchronize(rank.stream));
      done = true;
    } else {
      while (!done) std::this_thread::yield();
    }
    EXPECT_EQ(x.values()[0], 6.0f);
  });
}

TEST_P(Nccl, TransfersInAGroupComeInAnyOrder) {
  constexpr int size = 4;
  with_ranks(size, [&](Rank& rank) {
    // Everybody sends to everybody, also to itself, each rank in another order.
    std::vector<std::unique_ptr<DeviceArray<float>>> out, in;
    for (int peer = 0; peer < size; ++peer) {
      out.push_back(
          std::make_unique<DeviceArray<float>>(std::vector<float>(6, static_cast<float>(10 * rank.number + peer))));
      in.push_back(std::make_unique<DeviceArray<float>>(6));
    }
    NCCL_OK(ncclGroupStart());
    for (int step = 0; step < size; ++step) {
      const int to = (rank.number + step) % size;
      NCCL_OK(ncclSend(out[static_cast<std::size_t>(to)]->data(), 6, ncclFloat32, to, rank.comm, rank.stream));
    }
    for (int from = size - 1; from >= 0; --from) {
      NCCL_OK(ncclRecv(in[static_cast<std::size_t>(from)]->data(), 6, ncclFloat32, from, rank.comm, rank.stream));
    }
    NCCL_OK(ncclGroupEnd());
    CUDA_OK(cudaStreamSynchronize(rank.stream));
    for (int from = 0; from < size; ++from) {
      EXPECT_EQ(in[static_cast<std::size_t>(from)]->values_now()[5], static_cast<float>(10 * from + rank.number));
    }
  });
}

TEST_P(Nccl, TransfersOutsideOfGroupsPassThroughAPipeline) {
  constexpr int size = 4;
  with_ranks(size, [&](Rank& rank) {
    DeviceArray<float> x(std::vector<float>(4, 1.0f));
    for (int round = 0; round < 3; ++round) {
      if (rank.number > 0) {
        NCCL_OK(ncclRecv(x.data(), 4, ncclFloat32, rank.number - 1, rank.comm, rank.stream));
      }
      CUDA_OK(sample::scale(x.data(), x.data(), 2.0f, 4, rank.stream));
      if (rank.number + 1 < size) {
        NCCL_OK(ncclSend(x.data(), 4, ncclFloat32, rank.number + 1, rank.comm, rank.stream));
      }
    }
    CUDA_OK(cudaStreamSynchronize(rank.stream));
    // In round r rank 0 sends 2^(r+1), and every rank doubles once more.
    EXPECT_EQ(x.values_now()[0], static_cast<float>(8 << rank.number));
  });
}

// One thread may hold several devices, if its calls are in a group.
TEST_P(Nccl, OneThreadMayBeSeveralRanks) {
  constexpr int size = 2;
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  ncclComm_t comms[size];
  NCCL_OK(ncclGroupStart());
  for (int rank = 0; rank < size; ++rank) {
    CUDA_OK(cudaSetDevice(rank));
    NCCL_OK(ncclCommInitRank(&comms[rank], size, id, rank));
  }
  NCCL_OK(ncclGroupEnd());
  {
    std::vector<std::unique_ptr<DeviceArray<float>>> x;
    for (int rank = 0; rank < size; ++rank) {
      CUDA_OK(cudaSetDevice(rank));
      x.push_back(std::make_unique<DeviceArray<float>>(std::vector<float>(3, 1.0f)));
    }
    NCCL_OK(ncclGroupStart());
    for (std::size_t rank = 0; rank < size; ++rank) {
      CUDA_OK(cudaSetDevice(static_cast<int>(rank)));
      NCCL_OK(ncclAllReduce(x[rank]->data(), x[rank]->data(), 3, ncclFloat32, ncclSum, comms[rank], nullptr));
    }
    NCCL_OK(ncclGroupEnd());
    for (std::size_t rank = 0; rank < size; ++rank) {
      CUDA_OK(cudaSetDevice(static_cast<int>(rank)));
      EXPECT_EQ(x[rank]->values()[2], 2.0f);
    }
  }
  for (const ncclComm_t comm : comms) NCCL_OK(ncclCommDestroy(comm));
  CUDA_OK(cudaSetDevice(0));
}

// ---- Communicators -------------------------------------------------------------------------------------------------

TEST_P(Nccl, SplitsByColorAndKey) {
  with_ranks(4, [&](Rank& rank) {
    ncclComm_t half = nullptr;
    // Even and odd ranks, backwards.
    NCCL_OK(ncclCommSplit(rank.comm, rank.number % 2, -rank.number, &half, nullptr));
    int size = 0, number = -1, device = -1;
    NCCL_OK(ncclCommCount(half, &size));
    NCCL_OK(ncclCommUserRank(half, &number));
    NCCL_OK(ncclCommCuDevice(half, &device));
    EXPECT_EQ(size, 2);
    EXPECT_EQ(number, rank.number < 2 ? 1 : 0);
    EXPECT_EQ(device, rank.number);
    DeviceArray<float> x(std::vector<float>(2, static_cast<float>(rank.number)));
    NCCL_OK(ncclAllReduce(x.data(), x.data(), 2, ncclFloat32, ncclSum, half, rank.stream));
    CUDA_OK(cudaStreamSynchronize(rank.stream));
    EXPECT_EQ(x.values_now()[0], rank.number % 2 == 0 ? 2.0f : 4.0f);
    NCCL_OK(ncclCommDestroy(half));
    ncclComm_t none = rank.comm;
    NCCL_OK(ncclCommSplit(rank.comm, NCCL_SPLIT_NOCOLOR, 0, &none, nullptr));
    EXPECT_EQ(none, nullptr);
  });
}

ncclResult_t settled(ncclComm_t comm) {
  for (;;) {
    ncclResult_t state = ncclInternalError;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    if (state != ncclInProgress) return state;
    std::this_thread::yield();
  }
}

TEST_P(Nccl, CommunicatorsThatDoNotBlockHaveToBeAsked) {
  constexpr int size = 2;
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  run_ranks(size, [&](int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRankConfig(&comm, size, id, rank, &config), ncclInProgress);
    EXPECT_EQ(settled(comm), ncclSuccess);
    DeviceArray<float> x(std::vector<float>(2, 1.0f));
    EXPECT_EQ(ncclAllReduce(x.data(), x.data(), 2, ncclFloat32, ncclSum, comm, nullptr), ncclInProgress);
    EXPECT_EQ(ncclAllReduce(x.data(), x.data(), 2, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(settled(comm), ncclSuccess);
    EXPECT_EQ(x.values()[1], 2.0f);
    EXPECT_EQ(ncclCommFinalize(comm), ncclInProgress);
    EXPECT_EQ(settled(comm), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  });
}

TEST_P(Nccl, AbortEndsWhatWaitsForOtherRanks) {
  with_ranks(2, [&](Rank& rank) {
    if (rank.number == 1) return;
    DeviceArray<float> x(std::vector<float>(2, 1.0f));
    NCCL_OK(ncclAllReduce(x.data(), x.data(), 2, ncclFloat32, ncclSum, rank.comm, rank.stream));
    EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
    NCCL_OK(ncclCommAbort(rank.comm));
    rank.comm = nullptr;
    CUDA_OK(cudaStreamSynchronize(rank.stream));
    EXPECT_EQ(x.values_now()[0], 1.0f);
  });
}

TEST_P(Nccl, ErrorsComeWhereTheyAreOrdered) {
  settings_->nccl_error_rank = 1;
  settings_->nccl_error_call = 2;
  with_ranks(2, [&](Rank& rank) {
    DeviceArray<float> x(std::vector<float>(2, 1.0f));
    ncclResult_t state = ncclInternalError;
    for (int call = 0; call < 2; ++call) {
      NCCL_OK(ncclCommGetAsyncError(rank.comm, &state));
      EXPECT_EQ(state, ncclSuccess);
      NCCL_OK(ncclAllReduce(x.data(), x.data(), 2, ncclFloat32, ncclSum, rank.comm, rank.stream));
    }
    NCCL_OK(ncclCommGetAsyncError(rank.comm, &state));
    EXPECT_EQ(state, rank.number == 1 ? ncclRemoteError : ncclSuccess);
    for (int query = 0; query < 10; ++query) EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
    NCCL_OK(ncclCommAbort(rank.comm));
    rank.comm = nullptr;
    CUDA_OK(cudaStreamSynchronize(rank.stream));
  });
}

// ---- Faults --------------------------------------------------------------------------------------------------------

class NcclFault : public testing::Test {
 protected:
  NcclFault() {
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
    settings_->lazy_streams = false;
    settings_->nccl_timeout_seconds = 0.3;
  }
  /// What `call` does on each of two ranks, and then a wait.
  static void run(const std::function<ncclResult_t(Rank&, DeviceArray<float>&)>& call) {
    with_ranks(2, [&](Rank& rank) {
      DeviceArray<float> x(std::vector<float>(8, 1.0f));
      call(rank, x);
      cudaStreamSynchronize(rank.stream);
    });
  }
  ScopedSettings settings_;
};

TEST_F(NcclFault, TwoRanksOnOneDevice) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  run_ranks(2, [&](int rank) {
    ASSERT_EQ(cudaSetDevice(5), cudaSuccess);
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 2, id, rank), ncclInvalidUsage);
    EXPECT_STREQ(ncclGetLastError(nullptr), "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 5");
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  });
}

TEST_F(NcclFault, DifferentCounts) {
  EXPECT_DEATH(run([](Rank& rank, DeviceArray<float>& x) {
                 return ncclAllReduce(x.data(), x.data(), 4 + static_cast<std::size_t>(rank.number), ncclFloat32, ncclSum,
                                      rank.comm, rank.stream);
               }),
               "simulated CUDA: NCCL: the calls of rank . and rank . do not belong together: ncclAllReduce of . float32 "
               "\\(sum\\), its "
               "call 1; and ncclAllReduce of . float32");
}

TEST_F(NcclFault, DifferentTypesKindsRootsAndReductions) {
  EXPECT_DEATH(run([](Rank& rank, DeviceArray<float>& x) {
                 return ncclAllReduce(x.data(), x.data(), 4, rank.number == 0 ? ncclFloat32 : ncclInt32, ncclSum, rank.comm,
                                      rank.stream);
               }),
               "do not belong together: .*float32.*int32|do not belong together: .*int32.*float32");
  EXPECT_DEATH(run([](Rank& rank, DeviceArray<float>& x) {
                 return rank.number == 0 ? ncclAllReduce(x.data(), x.data(), 4, ncclFloat32, ncclSum, rank.comm, rank.stream)
                                         : ncclBroadcast(x.data(), x.data(), 4, ncclFloat32, 0, rank.comm, rank.stream);
               }),
               "do not belong together: .*ncclAllReduce|do not belong together: .*ncclBroadcast");
  EXPECT_DEATH(run([](Rank& rank, DeviceArray<float>& x) {
                 return ncclBroadcast(x.data(), x.data(), 4, ncclFloat32, rank.number, rank.comm, rank.stream);
               }),
               "do not belong together: ncclBroadcast of 4 float32 with root . its|with root ., its call 1; and");
  EXPECT_DEATH(run([](Rank& rank, DeviceArray<float>& x) {
                 return ncclAllReduce(x.data(), x.data(), 4, ncclFloat32, rank.number == 0 ? ncclSum : ncclMax, rank.comm,
                                      rank.stream);
               }),
               "do not belong together");
  EXPECT_DEATH(run([](Rank& rank, DeviceArray<float>& x) {
                 return rank.number == 0 ? ncclSend(x.data(), 4, ncclFloat32, 1, rank.comm, rank.stream)
                                         : ncclRecv(x.data(), 3, ncclFloat32, 0, rank.comm, rank.stream);
               }),
               "do not belong together: .*ncclSend of 4 float32 to rank 1|do not belong together: .*ncclRecv of 3 float32 "
               "from rank 0");
}

TEST_F(NcclFault, MissingRanks) {
  EXPECT_DEATH(run([](Rank& rank, DeviceArray<float>& x) {
                 if (rank.number == 1) return ncclSuccess;
                 return ncclAllReduce(x.data(), x.data(), 4, ncclFloat32, ncclSum, rank.comm, rank.stream);
               }),
               "NCCL: rank 0 of 2 waits in ncclAllReduce of 4 float32 \\(sum\\), its call 1; rank 1 has (not called it|left "
               "the communicator)");
  EXPECT_DEATH(run([](Rank& rank, DeviceArray<float>& x) {
                 if (rank.number == 1) return ncclSuccess;
                 return ncclRecv(x.data(), 4, ncclFloat32, 1, rank.comm, rank.stream);
               }),
               "rank 0 of 2 waits in ncclRecv of 4 float32 from rank 1, its call 1; rank 1 has");
  const auto make_alone = [] {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    ncclComm_t comm = nullptr;
    ncclCommInitRank(&comm, 3, id, 1);
  };
  EXPECT_DEATH(make_alone(), "rank 1 of 3 waits for its communicator; these have not come: rank 0, 2");
}

// Both ranks send first, outside of a group: neither comes to its receive.
TEST_F(NcclFault, CircleOfSends) {
  EXPECT_DEATH(
      run([](Rank& rank, DeviceArray<float>& x) {
        ncclSend(x.data(), 4, ncclFloat32, 1 - rank.number, rank.comm, rank.stream);
        return ncclRecv(x.data(), 4, ncclFloat32, 1 - rank.number, rank.comm, rank.stream);
      }),
      "waits in ncclSend of 4 float32 to rank ., its call 1; rank . has called it, but its stream has not come to it");
}

TEST_F(NcclFault, Buffers) {
  EXPECT_DEATH(run([](Rank& rank, DeviceArray<float>& x) {
                 return ncclAllReduce(x.data(), x.data(), 9, ncclFloat32, ncclSum, rank.comm, rank.stream);
               }),
               "rank ., ncclAllReduce of 9 float32.*reaches beyond the end of its allocation");
  EXPECT_DEATH(run([](Rank& rank, DeviceArray<float>& x) {
                 return ncclAllReduce(x.data(), x.data() + 1, 4, ncclFloat32, ncclSum, rank.comm, rank.stream);
               }),
               "the buffers overlap, and not as in-place operations may");
  EXPECT_DEATH(run([](Rank& rank, DeviceArray<float>& x) {
                 float host[4] = {};
                 return ncclAllReduce(host, x.data(), 4, ncclFloat32, ncclSum, rank.comm, rank.stream);
               }),
               "the send buffer .* is no device memory");
}

}  // namespace
}  // namespace simulated_cuda
