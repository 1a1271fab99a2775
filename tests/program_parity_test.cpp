// Many ranks compute what one computes: seen from outside, in the files that the program writes.
#include "common/checkpoint/safetensors.h"
#include "tests/support/compared_runs.h"

namespace escalera {
namespace {

class ProgramParity : public ComparedRuns {
 protected:
  void run(const std::string& name, const Words& start, const Words& more) const {
    run_well(start + small_model(text_) + two_steps(name, "16", "0.25") + more);
  }
};

// C04 (the clip is active), C05
TEST_F(ProgramParity, EveryModeAndAccumulationGivesTheGradientsAndWeightsOfOneRank) {
  run("one", on_threads(1), {});
  expect_clipped("one", 0.25);
  for (const int ranks : {2, 4}) {
    for (const char* accumulation : {"1", "4"}) {
      for (const char* mode : {"naive", "bucketed", "overlapped"}) {
        const std::string name = fmt::format("{}_{}_{}", ranks, mode, accumulation);
        run(name, on_threads(ranks), {"--dp-mode", mode, "--gradient-accumulation-steps", accumulation});
        expect_same_numbers(name, "one");
        expect_same_bits(name, fmt::format("{}_naive_{}", ranks, accumulation));
      }
    }
  }
}

TEST_F(ProgramParity, ThreadsAndProcessesGiveTheSameBits) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  for (const char* mode : {"naive", "overlapped"}) {
    const Words more = {"--dp-mode", mode, "--gradient-accumulation-steps", "2", "--threads", "1"};
    run(fmt::format("threads_{}", mode), on_threads(4), more);
    run(fmt::format("mpi_{}", mode), on_mpi(4), more);
    expect_same_bits(fmt::format("mpi_{}", mode), fmt::format("threads_{}", mode));
  }
}

TEST_F(ProgramParity, TheSameRunTwiceGivesTheSameBits) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    run("first", on_threads(4), {"--dtype", dtype, "--optimizer", "adamw"});
    run("second", on_threads(4), {"--dtype", dtype, "--optimizer", "adamw"});
    expect_same_bits("second", "first");
  }
}

TEST_F(ProgramParity, AnotherSeedIsAnotherRun) {  // so that the comparisons above compare something
  run("one", on_threads(1), {});
  run("other", on_threads(1), {"--seed", "2"});
  for (const auto& [name, error] : tensor_errors(folder_ / "other.gradients", folder_ / "one.gradients")) {
    EXPECT_GT(error, 1e-2) << name;
  }
}

// C09. Steps that change nothing: what is exported are the weights as they were made.
TEST_F(ProgramParity, InitialWeightsDoNotDependOnTheNumberOfRanks) {
  const Words still = {"--learning-rate", "0", "--weight-decay", "0", "--steps", "1", "--dtype", "float32"};
  run("one", on_threads(1), still);
  for (const int ranks : {2, 4}) {
    run("many", on_threads(ranks), still);
    EXPECT_TRUE(folder_.read("many/model.safetensors") == folder_.read("one/model.safetensors"))
        << ranks << " ranks";
  }
  const SafetensorsReader weights(folder_ / "one/model.safetensors");
  EXPECT_NE(weights.values("model.layers.0.self_attn.q_proj.weight"),
            weights.values("model.layers.1.self_attn.q_proj.weight"));
}

// C26. Ranks and micro-batches deal out the same samples: equal losses, step by step, over more than an epoch.
TEST_F(ProgramParity, FourRanksSeeTheSamplesOfFourMicroBatches) {
  const Words batch = {"--steps", "12", "--micro-batch-size", "4"};
  run("ranks", on_threads(4), batch);
  run("micro_batches", on_threads(1), batch);
  const auto ours = losses_of(folder_ / "ranks.jsonl"), theirs = losses_of(folder_ / "micro_batches.jsonl");
  ASSERT_EQ(ours.size(), 12U);
  ASSERT_EQ(theirs.size(), 12U);
  for (std::size_t i = 0; i < ours.size(); i++) EXPECT_NEAR(ours[i], theirs[i], 1e-10) << "step " << i + 1;
}

TEST_F(ProgramParity, TrainingGoesOnFromAnExportedFolder) {
  run("one", on_threads(2), {});
  run("next", on_threads(4), {"--init-from", folder_ / "one", "--learning-rate", "0", "--weight-decay", "0"});
  EXPECT_TRUE(folder_.read("next/model.safetensors") == folder_.read("one/model.safetensors"));
}

}  // namespace
}  // namespace escalera
