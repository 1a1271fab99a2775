// Step 3 on CUDA devices, real or simulated: judged by the same rule as on the CPU, against the CPU.
#include <gtest/gtest.h>

#include "common/cuda/cuda_backend.h"
#include "step03_tp/tests/parity_run.h"
#include "tests/support/devices.h"

namespace escalera {
namespace {

RunRecord run_on_devices(DevicePath path, const TpCase& test) {
  RunRecord record;
  const int code = launch_on_devices(test.ranks(), path, [&](Communicator& world, Communicator& tensors, Ops& ops) {
    RunRecord mine = run_case(world, tensors, ops, test);
    if (world.rank() == 0) record = std::move(mine);
  });
  EXPECT_EQ(code, 0);
  return record;
}

struct Layout {
  DevicePath path = DevicePath::nccl;
  TpCase test;
};

TpCase layout(int tp, int dp, bool sequence_parallel, bool overlap, DType dtype, Recompute recompute,
              Index kv_heads) {
  TpCase test;
  test.tp = tp;
  test.dp = dp;
  test.sequence_parallel = sequence_parallel;
  test.overlap = overlap;
  test.dtype = test.rounding = dtype;
  test.recompute = recompute;
  test.kv_heads = kv_heads;
  test.tied = overlap;
  test.accumulation = dp;
  return test;
}

/// Both ways of the region, overlapped or not, by both paths: a simulated run takes seconds.
std::vector<Layout> layouts() {
  std::vector<Layout> all = {
      {DevicePath::staged, layout(2, 1, false, false, DType::float32, Recompute::none, 2)},
      {DevicePath::staged, layout(2, 1, true, true, DType::bfloat16, Recompute::full, 2)},
      {DevicePath::staged, layout(4, 1, true, false, DType::float32, Recompute::selective, 2)},
      {DevicePath::staged, layout(4, 1, false, true, DType::bfloat16, Recompute::none, 8)},
      {DevicePath::nccl, layout(2, 1, true, true, DType::float32, Recompute::selective, 1)},
      {DevicePath::nccl, layout(2, 2, false, true, DType::bfloat16, Recompute::none, 2)},
      {DevicePath::nccl, layout(4, 1, true, false, DType::bfloat16, Recompute::full, 1)},
      {DevicePath::nccl, layout(4, 1, true, true, DType::float32, Recompute::none, 2)}};
  std::erase_if(all, [](const Layout& one) { return !has_devices(one.path, one.test.ranks()); });
  return all;
}

class CudaTensorParallel : public testing::TestWithParam<Layout> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaTensorParallel);
INSTANTIATE_TEST_SUITE_P(cuda, CudaTensorParallel, testing::ValuesIn(layouts()), [](const auto& instance) {
  return fmt::format("{}_{}", to_string(instance.param.path), name_of(instance.param.test));
});

TEST_P(CudaTensorParallel, IsAsCloseToFloat64AsOneCpuProcessIs) {
  expect_parity(run_on_devices(GetParam().path, GetParam().test), GetParam().test);
}

TEST(CudaTensorParallelFault_cuda, IsFarOutsideTheTolerance) {
  if (!find_cuda().backend) GTEST_SKIP() << find_cuda().missing;
  TpCase test = layout(2, 1, false, true, DType::float32, Recompute::none, 2);
  test.fault = Fault::norm_summed;
  const RunRecord& truth = parity_reference(tp_model(test), DType::float64, DType::float32, test.sequences());
  EXPECT_GT(largest_error(run_on_devices(DevicePath::staged, test), truth).value, 1e-3);
}

}  // namespace
}  // namespace escalera
