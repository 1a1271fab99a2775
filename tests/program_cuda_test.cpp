// Step 1's program with --device cuda, on a GPU or a simulated one: seen from outside, it does what it does on the CPU.
#include <algorithm>

#include "common/cuda/cuda_backend.h"
#include "tests/support/program_run.h"

namespace escalera {
namespace {

class cuda_Program : public testing::Test {
 protected:
  void SetUp() override {
    if (!find_cuda().backend) GTEST_SKIP() << find_cuda().missing;
  }

  Words options(const std::string& name) const {
    return small_model(text_) + Words{"--optimizer", "sgd", "--learning-rate", "0.5", "--clip", "0.25", "--steps", "2",
                                      "--global-batch-size", "16", "--dump-gradients", folder_ / (name + ".gradients"),
                                      "--export", folder_ / name, "--metrics", folder_ / (name + ".jsonl")};
  }
  ProcessResult run(const std::string& name, const Words& start, const Words& more) const {
    return run_well(start + options(name) + more);
  }
  /// Both in float32, each a rounding or two away from the truth: sums in other orders.
  void expect_same_numbers(const std::string& name, const std::string& reference) const {
    for (const char* file : {".gradients", "/model.safetensors"}) {
      for (const auto& [tensor, error] : tensor_errors(folder_ / (name + file), folder_ / (reference + file))) {
        EXPECT_LE(error, 1e-5) << tensor << " in " << name << file;
      }
    }
  }

  static bool has_devices(int count) { return cuda_backend().device_count() >= count; }

  TemporaryDirectory folder_;
  std::string text_ = folder_.write("text.txt", repetitive_text(3000));
};

TEST_F(cuda_Program, EveryCommunicatorGivesTheNumbersOfOneCpuProcess) {
  run("cpu", on_threads(1), {"--device", "cpu"});
  run("one", on_threads(1), {"--device", "cuda"});
  expect_same_numbers("one", "cpu");
  const ProcessResult staged = run("staged", on_threads(4), {"--device", "cuda", "--gradient-accumulation-steps", "2"});
  EXPECT_TRUE(mentions(staged.out, {"cuda:0, float32", "threads through host memory"}));
  expect_same_numbers("staged", "cpu");
  if (has_mpi()) {
    const ProcessResult mpi = run("mpi", on_mpi(2), {"--device", "cuda", "--comm", "mpi"});
    EXPECT_TRUE(mentions(mpi.out, {"mpi through host memory"}));
    expect_same_numbers("mpi", "cpu");
    run("auto", on_mpi(2), {"--device", "cuda"});
    expect_same_numbers("auto", "cpu");
  }
  for (const int ranks : {2, 4}) {
    if (!has_devices(ranks)) continue;
    const ProcessResult nccl = run("nccl", on_threads(ranks), {"--device", "cuda", "--comm", "nccl"});
    EXPECT_TRUE(mentions(nccl.out, {"nccl, one GPU per rank"}));
    expect_same_numbers("nccl", "cpu");
  }
}

TEST_F(cuda_Program, MemoryAndTrafficEqualTheFormulas) {
  const ProcessResult result =
      run_well(on_threads(2) + small_model(text_) + Words{"--device", "cuda", "--dtype", "bfloat16", "--steps", "2"});
  int equal = 0;
  for (const std::string& line : lines_of(result.out)) {
    const bool predicted = line.starts_with("  parameters") || line.starts_with("  gradients") ||
                           line.starts_with("  optimizer") || line.starts_with("  activations") ||
                           line.starts_with("  all_reduce");
    if (!predicted || line.find(',') == std::string::npos || line.find(" = ") != std::string::npos) continue;
    equal += line.ends_with("=");
  }
  EXPECT_EQ(equal, 5) << result.out;
}

TEST_F(cuda_Program, TheTraceHasARowForTheCommunicator) {
  run_well(on_threads(2) + small_model(text_) + Words{"--device", "cuda", "--steps", "2", "--trace", folder_ / "trace.json"});
  const std::string trace = folder_.read("trace.json");
  EXPECT_GE(occurrences(trace, "\"all_reduce\""), 2 * 2);
  EXPECT_GE(occurrences(trace, "forward model.layers.0"), 2 * 2);
}

TEST_F(cuda_Program, RefusesWhatGpusCannotDo) {
  const auto refused = [&](const Words& start, const Words& more, const std::vector<std::string>& parts,
                           const ProcessOptions& process = {}) {
    const ProcessResult result = run_process(start + small_model(text_) + Words{"--device", "cuda"} + more, process);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_TRUE(mentions(result.err, parts));
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  };
  refused(on_threads(2), {"--dtype", "float64"}, {"--dtype float64", "--device cpu"});
  refused(on_threads(2), {"--head-dim", "258"}, {"--head-dim 256", "258", "--device cpu"});
  if (has_mpi() && cuda_backend().is_simulated()) {
    const ProcessResult result = run_process(on_mpi(2) + small_model(text_) + Words{"--device", "cuda", "--comm", "nccl"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_TRUE(mentions(result.err, {"--comm nccl --ranks 2", "--comm mpi"}));
  }
  // Two ranks that see one device: NCCL needs one each.
  const ProcessOptions one_device = {.environment = {{"SIMULATED_CUDA_DEVICES", "1"}, {"CUDA_VISIBLE_DEVICES", "0"}}};
  refused(on_threads(2), {"--comm", "nccl"}, {"rank", "--comm mpi"}, one_device);
  const ProcessOptions no_device = {.environment = {{"SIMULATED_CUDA_DEVICES", "0"}, {"CUDA_VISIBLE_DEVICES", ""}}};
  refused(on_threads(1), {}, {"--device cuda", "no GPU is visible"}, no_device);
}

// Not a GPU test: what the program says where it was built for GPUs and there is none.
TEST(cuda_ProgramWithoutDevice, SaysWhatIsMissingAndAutoTakesTheCpu) {
  if (find_cuda().backend) GTEST_SKIP() << "there is a device";
  TemporaryDirectory folder;
  const std::string text = folder.write("text.txt", repetitive_text(3000));
  const ProcessResult result = run_process(on_threads(1) + small_model(text) + Words{"--device", "cuda"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(mentions(result.err, {"--device cuda: ", find_cuda().missing}));
  EXPECT_TRUE(mentions(run_well(on_threads(1) + small_model(text) + Words{"--steps", "1"}).out, {"cpu, float32"}));
}

}  // namespace
}  // namespace escalera
