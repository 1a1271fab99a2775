// Step 1 on CUDA devices, real or simulated: the same cases as on the CPU, judged by the same rule against the CPU.
#include <gtest/gtest.h>

#include <cmath>

#include "common/cuda/cuda_backend.h"
#include "common/optim/optimizer.h"
#include "step01_dp/tests/parity_suite.h"
#include "tests/support/devices.h"
#include "tests/simulated_cuda/include/simulated_cuda/counters.h"

// Null on a real GPU.
extern "C" __attribute__((weak)) SimulatedCudaCounters simulated_cuda_counters(void);

namespace escalera {
namespace {

std::vector<RunRecord> run_on_devices(int ranks, DevicePath path, const DpCase& test) {
  std::vector<RunRecord> records(static_cast<std::size_t>(ranks));
  const int code = launch_on_devices(ranks, path, [&](Communicator& world, Communicator& group, Ops& ops) {
    records[static_cast<std::size_t>(group.rank())] = run_case(world, group, ops, test);
  });
  EXPECT_EQ(code, 0);
  return records;
}

struct Layout {
  DevicePath path = DevicePath::nccl;
  int ranks = 1;
  DType dtype = DType::float32;
  DpMode mode = DpMode::naive;
};

/// Both paths x 1, 2, 4 ranks x all modes, as far as this machine's devices go. Types alternate, so that each pair of two
/// choices occurs: a simulated run takes seconds.
std::vector<Layout> layouts() {
  std::vector<Layout> all;
  int number = 0;
  for (const DevicePath path : {DevicePath::nccl, DevicePath::staged}) {
    for (const int ranks : {1, 2, 4}) {
      for (const DpMode mode : {DpMode::naive, DpMode::bucketed, DpMode::overlapped}) {
        const DType dtype = number++ % 2 == 0 ? DType::float32 : DType::bfloat16;
        if (has_devices(path, ranks)) all.push_back({path, ranks, dtype, mode});
      }
    }
  }
  return all;
}

/// Each mode with another accumulation, recompute, bucket size and tying.
DpCase case_of(DpMode mode, DType dtype) {
  DpCase test;
  test.mode = mode;
  test.dtype = test.rounding = dtype;
  test.accumulation = mode == DpMode::bucketed ? 1 : 4;
  test.recompute = mode == DpMode::naive      ? Recompute::none
                   : mode == DpMode::bucketed ? Recompute::selective
                                              : Recompute::full;
  test.bucket_bytes = mode == DpMode::bucketed ? 400'000 : 0;
  test.tied = mode != DpMode::naive;
  return test;
}

class CudaParity : public testing::TestWithParam<Layout> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaParity);
INSTANTIATE_TEST_SUITE_P(cuda, CudaParity, testing::ValuesIn(layouts()), [](const auto& instance) {
  const Layout& layout = instance.param;
  return fmt::format("{}_dp{}_{}_{}", to_string(layout.path), layout.ranks, to_string(layout.mode), to_string(layout.dtype));
});

TEST_P(CudaParity, IsAsCloseToFloat64AsOneCpuProcessIs) {
  const Layout& layout = GetParam();
  const DpCase test = case_of(layout.mode, layout.dtype);
  expect_parity(run_on_devices(layout.ranks, layout.path, test), test);
}

class CudaPath : public testing::TestWithParam<DevicePath> {
 protected:
  void SetUp() override {
    if (!find_cuda().backend) GTEST_SKIP() << find_cuda().missing;
    if (!has_devices(GetParam(), 2)) GTEST_SKIP() << "NCCL needs a device for each of two ranks";
  }
};
INSTANTIATE_TEST_SUITE_P(cuda, CudaPath, testing::Values(DevicePath::nccl, DevicePath::staged),
                         [](const auto& instance) { return std::string(to_string(instance.param)); });

TEST_P(CudaPath, TheSameLayoutTwiceGivesTheSameBits) {
  const DpCase test = case_of(DpMode::overlapped, DType::bfloat16);
  const RunRecord first = run_on_devices(2, GetParam(), test)[0], second = run_on_devices(2, GetParam(), test)[0];
  EXPECT_EQ(first.gradients, second.gradients);
  EXPECT_EQ(first.weights, second.weights);
}

TEST_P(CudaPath, AFaultIsFarOutsideTheTolerance) {
  DpCase test = case_of(DpMode::overlapped, DType::float32);
  test.fault = Fault::local_mean;
  const RunRecord wrong = run_on_devices(2, GetParam(), test)[0];
  test.fault = Fault::none;
  EXPECT_GT(largest_error(wrong, reference(test)).value, 1e-3);

  test.fault = Fault::dropped_gradient;
  testing::internal::CaptureStderr();
  const int code = launch_on_devices(2, GetParam(), [&](Communicator& world, Communicator& group, Ops& ops) { run_case(world, group, ops, test); });
  EXPECT_EQ(code, 1);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("replicas have drifted apart at step 1"), std::string::npos);
}

// cudaMalloc waits for the device: once the arena has what a step needs, a step must not call it.
TEST(cuda_Step, AllocatesNothingAfterTheFirst) {
  if (!find_cuda().backend) GTEST_SKIP() << find_cuda().missing;
  if (!simulated_cuda_counters) GTEST_SKIP() << "only simulated CUDA counts allocations";
  const std::unique_ptr<Ops> ops = cuda_backend().make_ops(0);
  const ModelConfig config = parity_model(true);
  Model model(*ops, config, {DType::bfloat16, Recompute::selective, 0}, Stage::whole(config));
  model.allocate();
  initialize_rounded(model, 1, DType::bfloat16);
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(*ops, model.buckets(), {});
  const ParityBatch batch(config, 0);
  const std::vector<std::int32_t> positions = model.attention().positions(batch.length);
  unsigned long allocations = 0, launches = 0;
  for (int step = 0; step < 3; step++) {
    model.begin_step(2);
    for (const Index first : {Index{0}, Index{4}}) {
      const MicroBatch micro_batch = batch.micro_batch(first, 4, positions);
      InFlight in_flight;
      model.forward({}, micro_batch, in_flight);
      model.backward({}, micro_batch, in_flight, first > 0);
    }
    optimizer->update(1e-3, clip_factor(std::sqrt(model.squared_gradient_norm()), 1.0));
    const SimulatedCudaCounters counters = simulated_cuda_counters();
    if (step == 0) {
      EXPECT_GT(counters.allocations, 0U);
      allocations = counters.allocations;
    }
    EXPECT_EQ(counters.allocations, allocations) << "in step " << step + 1;
    EXPECT_GT(counters.kernel_launches, launches);
    launches = counters.kernel_launches;
  }
}

}  // namespace
}  // namespace escalera
