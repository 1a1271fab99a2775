// The execution model gives the right results, whatever the order of threads and the time at which copies land.
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>

#include <simulated_cuda/counters.h>

#include "tests/simulated_cuda/tests/sample_kernels.h"
#include "tests/simulated_cuda/tests/support.h"

namespace simulated_cuda {
namespace {

class Execution : public testing::TestWithParam<std::tuple<ThreadOrder, bool>> {
 protected:
  Execution() {
    settings_->order = std::get<0>(GetParam());
    settings_->early_copies = std::get<1>(GetParam());
  }
  ScopedSettings settings_;
};

std::string name_of(const testing::TestParamInfo<std::tuple<ThreadOrder, bool>>& parameters) {
  const auto [order, early] = parameters.param;
  const std::string name = order == ThreadOrder::forward ? "forward" : order == ThreadOrder::reverse ? "reverse" : "shuffle";
  return name + (early ? "_early" : "_late");
}

INSTANTIATE_TEST_SUITE_P(Orders, Execution,
                         testing::Combine(testing::Values(ThreadOrder::forward, ThreadOrder::reverse, ThreadOrder::shuffle),
                                          testing::Bool()),
                         name_of);

TEST_P(Execution, GridsCoverTheirData) {
  const std::vector<float> x = random_floats(1000);
  DeviceArray<float> in(x), out(x.size());
  CUDA_OK(sample::scale(out.data(), in.data(), 3.0f, 1000, nullptr));
  const std::vector<float> y = out.values();
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], 3.0f * x[i]);
}

TEST_P(Execution, BlocksSumThroughShufflesAndSharedMemory) {
  const std::vector<float> x = random_floats(7 * 256);
  DeviceArray<float> in(x), out(7);
  CUDA_OK(sample::block_sums(out.data(), in.data(), 7, nullptr));
  const std::vector<float> sums = out.values();
  for (std::size_t block = 0; block < 7; ++block) {
    const auto first = x.begin() + static_cast<std::ptrdiff_t>(block) * 256;
    EXPECT_NEAR(sums[block], std::accumulate(first, first + 256, 0.0), 1e-4);
  }
}

TEST_P(Execution, BlocksOfTwoDimensionsTranspose) {
  constexpr int rows = 37, columns = 50;
  const std::vector<float> x = random_floats(rows * columns);
  DeviceArray<float> in(x), out(x.size());
  CUDA_OK(sample::transpose(out.data(), in.data(), rows, columns, nullptr));
  const std::vector<float> y = out.values();
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) EXPECT_EQ(y[j * rows + i], x[i * columns + j]);
  }
}

TEST_P(Execution, DynamicSharedMemoryIsCommonToTheBlock) {
  for (const int count : {1, 33, 1024}) {
    const std::vector<float> x = random_floats(static_cast<std::size_t>(count));
    DeviceArray<float> in(x), out(x.size());
    CUDA_OK(sample::reverse(out.data(), in.data(), count, nullptr));
    EXPECT_EQ(out.values(), std::vector<float>(x.rbegin(), x.rend()));
  }
}

TEST_P(Execution, AtomicsCountEveryThread) {
  std::vector<unsigned> x(500);
  std::iota(x.begin(), x.end(), 0u);
  DeviceArray<unsigned> in(x), counts(7);
  CUDA_OK(cudaMemset(counts.data(), 0, 7 * sizeof(unsigned)));
  CUDA_OK(sample::histogram(counts.data(), in.data(), 500, 7, nullptr));
  EXPECT_EQ(counts.values(), (std::vector<unsigned>{72, 72, 72, 71, 71, 71, 71}));
}

TEST_P(Execution, BarriersWaitForThreadsThatHaveNotExited) {
  std::vector<int> x(64), expected(64);
  std::iota(x.begin(), x.end(), 1);
  std::partial_sum(x.begin(), x.end(), expected.begin());
  for (const int count : {1, 31, 45, 64}) {
    DeviceArray<int> in(x), out(64);
    CUDA_OK(sample::prefix_sums(out.data(), in.data(), count, nullptr));
    const std::vector<int> y = out.values();
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) EXPECT_EQ(y[i], expected[i]);
  }
}

TEST_P(Execution, HalvesOfAWarpShuffleAtOnce) {
  std::vector<int> x(32);
  std::iota(x.begin(), x.end(), 1);
  DeviceArray<int> in(x), out(32);
  CUDA_OK(sample::half_warp_sums(out.data(), in.data(), nullptr));
  const std::vector<int> y = out.values();
  for (std::size_t lane = 0; lane < 32; ++lane) EXPECT_EQ(y[lane], lane < 16 ? 136 : 392);
}

TEST_P(Execution, VotesAndReductionsSeeAllThreads) {
  std::vector<int> x(64, 0);
  x[3] = 5;
  x[40] = 8;
  x[63] = -2;
  DeviceArray<int> in(x);
  DeviceArray<sample::Votes> out(64);
  CUDA_OK(sample::votes(out.data(), in.data(), nullptr));
  const std::vector<sample::Votes> votes = out.values();
  for (std::size_t thread = 0; thread < 64; ++thread) {
    const bool second = thread >= 32;
    EXPECT_EQ(votes[thread].ballot, second ? 1u << 8 : 1u << 3);
    EXPECT_EQ(votes[thread].any, 1);
    EXPECT_EQ(votes[thread].all, 0);
    EXPECT_EQ(votes[thread].sum, second ? 6 : 5);
    EXPECT_EQ(votes[thread].least, second ? -2 : 0);
    EXPECT_EQ(votes[thread].reduced_or, second ? 0xfffffffeu : 5u);
    EXPECT_EQ(votes[thread].count, 2);
    EXPECT_EQ(votes[thread].block_or, 1);
    EXPECT_EQ(votes[thread].block_and, 0);
  }
}

TEST_P(Execution, PointersInStructsAreFollowed) {
  DeviceArray<float> x(std::vector<float>(50, 2.0f)), y(std::vector<float>(50, 1.0f));
  CUDA_OK(sample::axpy({y.data(), x.data(), 3.0f, 50}, nullptr));
  EXPECT_EQ(y.values(), std::vector<float>(50, 7.0f));
}

TEST_P(Execution, TensorCoresMultiply) {
  constexpr std::size_t m = 32, n = 48, k = 80;
  std::vector<__nv_bfloat16> a(m * k), b(n * k);
  const std::vector<float> numbers = random_floats(a.size() + b.size());
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = __float2bfloat16(numbers[i]);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = __float2bfloat16(numbers[a.size() + i]);
  DeviceArray<__nv_bfloat16> left(a), right(b);
  for (const bool by_rows : {false, true}) {
    DeviceArray<float> out(m * n);
    const SimulatedCudaCounters before = simulated_cuda_counters();
    CUDA_OK(sample::tensor_core_product(out.data(), left.data(), right.data(), m, n, k, by_rows, nullptr));
    const std::vector<float> c = out.values();
    const SimulatedCudaCounters after = simulated_cuda_counters();
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::size_t p = 0; p < k; ++p) {
          sum += static_cast<double>(__bfloat162float(a[i * k + p])) *
                 static_cast<double>(__bfloat162float(by_rows ? b[p * n + j] : b[j * k + p]));
        }
        EXPECT_NEAR(c[i * n + j], sum, 1e-4);
      }
    }
    // 16 x 16 results of a block take k / 16 steps of two products and two loads, without bank conflicts.
    const unsigned long steps = m / 16 * (n / 16) * (k / 16);
    EXPECT_EQ(after.tensor_core_products - before.tensor_core_products, 2 * steps);
    EXPECT_EQ(after.matrix_loads - before.matrix_loads, 2 * steps);
    EXPECT_EQ(after.matrix_load_wavefronts - before.matrix_load_wavefronts, 8 * steps);
    EXPECT_EQ(after.shared_copy_bytes - before.shared_copy_bytes, 2 * 512 * steps);
  }
}

// An order is a function of the seed: a failure can be repeated.
TEST_P(Execution, IsTheSameEveryTime) {
  const std::vector<float> x = random_floats(5 * 256);
  DeviceArray<float> in(x), first(5), second(5);
  CUDA_OK(sample::block_sums(first.data(), in.data(), 5, nullptr));
  CUDA_OK(sample::block_sums(second.data(), in.data(), 5, nullptr));
  EXPECT_EQ(first.values(), second.values());
}

TEST(SharedMemory, AboveTheDefaultNeedsOptIn) {
  DeviceArray<float> y(1);
  EXPECT_EQ(sample::use_shared_memory(y.data(), 48 << 10, false, nullptr), cudaSuccess);
  EXPECT_EQ(sample::use_shared_memory(y.data(), (48 << 10) + 16, false, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(sample::use_shared_memory(y.data(), 100 << 10, true, nullptr), cudaSuccess);
  EXPECT_EQ(y.values()[0], 1.0f);
  EXPECT_EQ(sample::use_shared_memory(y.data(), 200 << 10, true, nullptr), cudaErrorInvalidValue);
  // What one device allows, another does not.
  CUDA_OK(cudaSetDevice(1));
  DeviceArray<float> elsewhere(1);
  EXPECT_EQ(sample::use_shared_memory(elsewhere.data(), 100 << 10, false, nullptr), cudaErrorInvalidValue);
  CUDA_OK(cudaSetDevice(0));
}

TEST(Memory, StartsAsNotANumber) {
  for (const std::size_t size : {1u, 1000u, 300000u}) {
    DeviceArray<float> memory(size);
    for (const float value : memory.values()) ASSERT_TRUE(std::isnan(value));
  }
}

}  // namespace
}  // namespace simulated_cuda
