// Many ranks compute what one computes: seen from outside, in the files that the program writes.
#include "common/checkpoint/safetensors.h"
#include "tests/support/program_run.h"

namespace escalera {
namespace {

class ProgramParity : public testing::Test {
 protected:
  /// Two SGD steps on 16 sequences each, with a learning rate and a clip that are felt in the weights.
  Words options(const std::string& run) const {
    return small_model(text_) + Words{"--dtype",
                                      "float64",
                                      "--optimizer",
                                      "sgd",
                                      "--learning-rate",
                                      "0.5",
                                      "--clip",
                                      "0.25",
                                      "--steps",
                                      "2",
                                      "--global-batch-size",
                                      "16",
                                      "--dump-gradients",
                                      folder_ / (run + ".gradients"),
                                      "--export",
                                      folder_ / run,
                                      "--metrics",
                                      folder_ / (run + ".jsonl")};
  }
  void run(const std::string& name, const Words& start, const Words& more) const {
    run_well(start + options(name) + more);
  }

  void expect_same_numbers(const std::string& run, const std::string& reference) const {
    for (const char* file : {".gradients", "/model.safetensors"}) {
      for (const auto& [name, error] : tensor_errors(folder_ / (run + file), folder_ / (reference + file))) {
        // float64 sums in another order: expect 1e-14. Averages instead of sums, or a part left out, are off by 1e-2 or more.
        EXPECT_LE(error, 1e-10) << name << " in " << run << file;
      }
    }
    const auto ours = metrics_of(folder_ / (run + ".jsonl")),
               theirs = metrics_of(folder_ / (reference + ".jsonl"));
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t i = 0; i < ours.size(); i++) {
      for (const char* key : {"loss", "grad_norm"}) {
        EXPECT_NEAR(ours[i].at(key).get<double>(), theirs[i].at(key).get<double>(),
                    1e-10 * theirs[i].at(key).get<double>());
      }
    }
  }

  void expect_same_bits(const std::string& run, const std::string& reference) const {
    for (const char* file : {".gradients", "/model.safetensors"}) {
      EXPECT_TRUE(folder_.read(run + file) == folder_.read(reference + file))
          << run << " and " << reference << file;
    }
    EXPECT_EQ(losses_of(folder_ / (run + ".jsonl")), losses_of(folder_ / (reference + ".jsonl")));
  }

  TemporaryDirectory folder_;
  std::string text_ = folder_.write("text.txt", repetitive_text(3000));
};

// C04 (the clip is active), C05
TEST_F(ProgramParity, EveryModeAndAccumulationGivesTheGradientsAndWeightsOfOneRank) {
  run("one", on_threads(1), {});
  for (const auto& line : metrics_of(folder_ / "one.jsonl")) {
    ASSERT_GT(line.at("grad_norm").get<double>(), 0.25)
        << "the clip is not active: nothing is proved about it";
  }
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
