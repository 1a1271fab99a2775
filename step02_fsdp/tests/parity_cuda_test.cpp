// Step 2 on CUDA devices, real or simulated: a few of the same cases, judged by the same rule against the CPU.
#include <gtest/gtest.h>

#include "common/cuda/cuda_backend.h"
#include "step02_fsdp/tests/sharded_run.h"
#include "tests/support/devices.h"

namespace escalera {
namespace {

std::vector<ShardedResult> run_on_devices(DevicePath path, const ShardedCase& test) {
  std::vector<ShardedResult> results(static_cast<std::size_t>(test.ranks));
  const int code = launch_on_devices(test.ranks, path, [&](Communicator& world, Communicator& tensors, Ops& ops) {
    results[static_cast<std::size_t>(world.rank())] = run_case(world, tensors, ops, test);
  });
  EXPECT_EQ(code, 0);
  return results;
}

struct Layout {
  DevicePath path = DevicePath::nccl;
  ShardedCase test;
};

/// Each stage on both paths, as far as this machine's devices go; types, prefetch, groups and the rest alternate: a simulated run
/// takes seconds.
std::vector<Layout> layouts() {
  std::vector<Layout> all;
  int number = 0;
  for (const DevicePath path : {DevicePath::nccl, DevicePath::staged}) {
    for (const int zero : {1, 2, 3, 3}) {
      ShardedCase test;
      const bool even = number % 2 == 0;
      test.ranks = number % 4 == 3 ? 4 : 2;
      test.shards = 2;
      test.dtype = test.rounding = (number / 2 + number) % 2 == 0 ? DType::float32 : DType::bfloat16;
      test.sharding.zero = zero;
      test.sharding.prefetch = even ? 1 : 2;
      test.sharding.reshard_after_forward = number % 8 != 7;
      test.accumulation = even ? 3 : 1;
      test.recompute = zero == 2 ? Recompute::full : Recompute::none;
      test.tied = even;
      number++;
      if (has_devices(path, test.ranks)) all.push_back({path, test});
    }
  }
  return all;
}

void PrintTo(const Layout& layout, std::ostream* out) {
  *out << to_string(layout.path) << " " << name_of(layout.test);
}

class CudaParity : public testing::TestWithParam<Layout> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaParity);
INSTANTIATE_TEST_SUITE_P(cuda, CudaParity, testing::ValuesIn(layouts()), [](const auto& instance) {
  return fmt::format("{}_{}_{}", to_string(instance.param.path), to_string(instance.param.test.dtype),
                     name_of(instance.param.test));
});

TEST_P(CudaParity, IsAsCloseToFloat64AsOneCpuProcessIs) {
  const auto& [path, test] = GetParam();
  const std::vector<ShardedResult> results = run_on_devices(path, test);
  expect_parity(results[0].record, sharded_model(test.tied), test.dtype, test.rounding, test.sequences());
  TrafficPrediction all;
  for (const ShardedResult& result : results) {
    for (std::size_t i = 0; i < operation_count; i++) all.bytes[i] += result.traffic.bytes[i];
  }
  for (const ShardedResult& result : results) expect_predicted(result, all, test, path == DevicePath::staged);
}

TEST(cuda_Sharded, StagesGiveTheSameBitsAndAFaultIsFarOutsideTheTolerance) {
  if (!find_cuda().backend) GTEST_SKIP() << find_cuda().missing;
  ShardedCase test;
  test.accumulation = 3;
  test.dtype = test.rounding = DType::float32;
  const RunRecord three = run_on_devices(DevicePath::staged, test)[0].record;
  test.sharding.zero = 2;
  const RunRecord two = run_on_devices(DevicePath::staged, test)[0].record;
  EXPECT_EQ(three.gradients, two.gradients);
  EXPECT_EQ(three.weights, two.weights);
  test.fault = Fault::overwritten_gradient;
  test.sharding.prefetch = 0;
  EXPECT_GT(largest_error(run_on_devices(DevicePath::staged, test)[0].record, three).value, 1e-3);
}

}  // namespace
}  // namespace escalera
