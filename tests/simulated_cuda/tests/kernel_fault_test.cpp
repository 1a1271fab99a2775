// Every fault that a kernel or its launch may have is planted once, and has to be noticed.
#include <cmath>

#include "tests/simulated_cuda/tests/faulty_kernels.h"
#include "tests/simulated_cuda/tests/sample_kernels.h"
#include "tests/simulated_cuda/tests/support.h"

namespace simulated_cuda {
namespace {

/// Death tests start a process of their own: there may be other threads here.
class KernelFault : public testing::Test {
 protected:
  KernelFault() {
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
    settings_->lazy_streams = false;  // a kernel has run when its launch returns
  }
  ScopedSettings settings_;
};

constexpr ThreadOrder orders[] = {ThreadOrder::forward, ThreadOrder::reverse, ThreadOrder::shuffle};

// ---- Threads of a block --------------------------------------------------------------------------------------------

// Without a sanitizer the sums are wrong in some order; ThreadSanitizer sees the race itself, and in every order.
TEST_F(KernelFault, MissingBarrier) {
  const std::vector<float> x = random_floats(4 * 256);
  if (with_thread_sanitizer) {
    const auto run = [&] {
      DeviceArray<float> in(x);
      DeviceArray<float> sums(4);
      faulty::block_sums_without_barrier(sums.data(), in.data(), 4, nullptr);
      std::exit(0);
    };
    constexpr int exit_code_of_races = 66;
    for (const ThreadOrder order : orders) {
      settings_->order = order;
      EXPECT_EXIT(run(), testing::ExitedWithCode(exit_code_of_races), "data race(.|\n)*sum_without_barrier_kernel");
    }
    return;
  }
  DeviceArray<float> in(x), right(4);
  CUDA_OK(sample::block_sums(right.data(), in.data(), 4, nullptr));
  int wrong = 0;
  for (const ThreadOrder order : orders) {
    settings_->order = order;
    DeviceArray<float> sums(4);
    CUDA_OK(faulty::block_sums_without_barrier(sums.data(), in.data(), 4, nullptr));
    wrong += sums.values() != right.values() ? 1 : 0;
  }
  EXPECT_GE(wrong, 2);
}

TEST_F(KernelFault, DivergentBarrier) {
  for (const ThreadOrder order : orders) {
    settings_->order = order;
    DeviceArray<float> y(64);
    EXPECT_DEATH(
        faulty::divergent_barrier(y.data(), nullptr),
        "simulated CUDA: .*divergent_barrier_kernel.*block \\(0,0,0\\), thread \\([0-9]+,0,0\\): divergent barrier");
  }
}

TEST_F(KernelFault, DivergentWarp) {
  DeviceArray<float> y(32);
  EXPECT_DEATH(faulty::divergent_collective(y.data(), nullptr),
               "divergent warp: .*__shfl_xor_sync|divergent warp: .*__ballot_sync");
  EXPECT_DEATH(faulty::divergent_shuffle(y.data(), nullptr), "divergent warp: lane .* is in __shfl_xor_sync");
  EXPECT_DEATH(faulty::lane_outside_of_mask(y.data(), nullptr), "is not in its mask 0000ffff");
  EXPECT_DEATH(faulty::shuffle_from_exited_lane(y.data(), nullptr), "reads lane 0 in a shuffle, which takes no part");
  EXPECT_DEATH(faulty::half_a_product(y.data(), nullptr), "mma .*needs all 32 lanes");
}

TEST_F(KernelFault, Deadlock) {
  DeviceArray<float> y(32);
  EXPECT_DEATH(
      faulty::barrier_against_shuffle(y.data(), nullptr),
      "deadlock: 1 threads wait at a barrier, 31 for lanes of their warp.*thread \\(0,0,0\\) waits in __syncthreads");
}

TEST_F(KernelFault, BarrierOutsideOfAKernel) {
  EXPECT_DEATH(__syncthreads(), "__syncthreads was called outside of a kernel");
}

// ---- Memory --------------------------------------------------------------------------------------------------------

TEST_F(KernelFault, BeyondStaticSharedMemory) {
  if (!with_address_sanitizer) GTEST_SKIP() << "needs AddressSanitizer";
  DeviceArray<float> y(64);
  EXPECT_DEATH(faulty::beyond_static_shared(y.data(), nullptr), "global-buffer-overflow|insufficient space for an object");
}

// This is noticed in every build: a page that nobody may touch comes next.
TEST_F(KernelFault, BeyondDynamicSharedMemory) {
  DeviceArray<float> y(64);
  EXPECT_DEATH(faulty::beyond_dynamic_shared(y.data(), nullptr),
               with_address_sanitizer ? "use-after-poison(.|\n)*beyond_dynamic_shared_kernel" : "");
}

TEST_F(KernelFault, BeyondGlobalMemory) {
  DeviceArray<float> exact(128), odd(100);
  // Allocations end, up to CUDA's alignment, at a page that nobody may touch.
  EXPECT_DEATH(faulty::beyond_global(exact.data(), 128, nullptr), with_address_sanitizer ? "heap-buffer-overflow" : "");
  if (!with_address_sanitizer) return;
  EXPECT_DEATH(faulty::beyond_global(odd.data(), 100, nullptr), "heap-buffer-overflow(.|\n)*beyond_global_kernel");
}

TEST_F(KernelFault, MisalignedVector) {
  DeviceArray<float> x(8), y(4);
  EXPECT_DEATH(faulty::misaligned_copy(y.data(), x.data(), nullptr), "addresses have to be multiples of 16");
  if (!with_address_sanitizer) return;  // with it comes the sanitizer of undefined behaviour
  EXPECT_DEATH(faulty::misaligned_vector(y.data(), x.data(), nullptr), "misaligned address");
}

// ---- Asynchronous copies -------------------------------------------------------------------------------------------

std::vector<float> reversed_by_64(const std::vector<float>& x) {
  std::vector<float> result(x.rend() - 64, x.rend());
  result.insert(result.end(), x.rbegin(), x.rend() - 64);
  return result;
}

// A race too, which ThreadSanitizer sees at once; so the wrong numbers are looked for without it.
TEST_F(KernelFault, AsynchronousCopies) {
  if (with_thread_sanitizer) GTEST_SKIP() << "the planted faults are data races";
  const std::vector<float> x = random_floats(128);
  DeviceArray<float> in(x), y(128);
  settings_->early_copies = true;
  CUDA_OK(faulty::copy_without_wait(y.data(), in.data(), nullptr));
  EXPECT_EQ(y.values(), std::vector<float>(x.rbegin(), x.rend()));
  settings_->early_copies = false;
  CUDA_OK(faulty::copy_without_wait(y.data(), in.data(), nullptr));
  EXPECT_NE(y.values(), std::vector<float>(x.rbegin(), x.rend()));

  CUDA_OK(faulty::copy_refilled_too_soon(y.data(), in.data(), nullptr));
  EXPECT_EQ(y.values(), reversed_by_64(x));
  settings_->early_copies = true;
  CUDA_OK(faulty::copy_refilled_too_soon(y.data(), in.data(), nullptr));
  EXPECT_NE(y.values(), reversed_by_64(x));
}

TEST_F(KernelFault, CopiesThatNobodyWaitsFor) {
  DeviceArray<float> x(128);
  for (const bool early : {false, true}) {
    settings_->early_copies = early;
    EXPECT_DEATH(faulty::exit_with_copies(x.data(), nullptr), "exits before its asynchronous copies have arrived");
  }
}

// ---- Launches ------------------------------------------------------------------------------------------------------

TEST_F(KernelFault, HostPointers) {
  float host[4] = {};
  float* pinned = nullptr;
  CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&pinned), sizeof host));
  DeviceArray<float> y(4);
  EXPECT_DEATH(sample::scale(y.data(), host, 1.0f, 4, nullptr),
               "launch of .*scale_kernel.*: argument 2, .*is no device pointer");
  EXPECT_DEATH(sample::scale(pinned, y.data(), 1.0f, 4, nullptr), "argument 1, .*is pinned host memory");
  EXPECT_DEATH(faulty::follow({y.data(), host}, nullptr), "argument 1 holds, at byte 8, the host pointer");
  CUDA_OK(cudaFreeHost(pinned));
}

TEST_F(KernelFault, DevicePointersOnTheHost) {
  DeviceArray<float> y(4);
  EXPECT_DEATH(y.data()[0] = 1.0f, "");
}

TEST_F(KernelFault, MemoryOfAnotherDevice) {
  CUDA_OK(cudaSetDevice(1));
  DeviceArray<float> elsewhere(4);
  cudaStream_t stream = nullptr;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaSetDevice(0));
  DeviceArray<float> here(4);
  EXPECT_DEATH(sample::scale(here.data(), elsewhere.data(), 1.0f, 4, nullptr),
               "on device 0: argument 2 points to memory of device 1");
  EXPECT_DEATH(faulty::follow({here.data(), elsewhere.data()}, nullptr), "argument 1 points to memory of device 1");
  EXPECT_DEATH(sample::scale(here.data(), here.data(), 1.0f, 4, stream),
               "the stream is of device 1, but the calling thread's current device is 0");
  CUDA_OK(cudaStreamDestroy(stream));
}

TEST_F(KernelFault, FreedMemory) {
  DeviceArray<float> y(4);
  float* freed = nullptr;
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&freed), 100));
  CUDA_OK(cudaFree(freed));
  EXPECT_DEATH(sample::scale(y.data(), freed, 1.0f, 4, nullptr), "argument 2, .*points to device memory that was freed");
  EXPECT_DEATH(faulty::follow({y.data(), freed + 1}, nullptr), "argument 1, .*points to device memory that was freed");
  EXPECT_DEATH(cudaMemset(freed, 0, 4), "that was freed");
  EXPECT_DEATH(cudaFree(freed), "was freed before");
}

TEST_F(KernelFault, ImpossibleSizes) {
  DeviceArray<float> y(4);
  EXPECT_EQ(sample::reverse(y.data(), y.data(), 1025, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(sample::block_sums(y.data(), y.data(), 0, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace simulated_cuda
