// Step 2's program: whatever is shared out, the numbers are those of one process, and memory and traffic those of the formulas.
#include <fmt/ranges.h>

#include "common/checkpoint/safetensors.h"
#include "tests/support/compared_runs.h"

namespace escalera {
namespace {

class ProgramSharding : public ComparedRuns {
 protected:
  static Words sharded(int ranks) { return on_threads(ranks, "step02_fsdp"); }
  /// Sizes that no number of ranks divides.
  Words model() const {
    return small_model(text_) + Words{"--hidden-size", "47", "--head-dim", "8", "--intermediate-size", "77"};
  }
  void run(const std::string& name, const Words& start, const Words& more = {}) const {
    run_well(start + model() + two_steps(name, "24", "0.25") + more);
  }
};

// C04 (the clip is active), C09
TEST_F(ProgramSharding, EveryStageGivesTheGradientsAndWeightsOfOneRank) {
  run("one", on_threads(1));  // of step 1
  expect_clipped("one", 0.25);
  for (const char* zero : {"0", "1", "2", "3"}) {
    const std::string name = fmt::format("zero{}", zero);
    run(name, sharded(3),
        {"--zero", zero, "--gradient-accumulation-steps", "2", "--tie-word-embeddings", "false"});
    expect_same_numbers(name, "one");
    if (zero[0] == '0') continue;
    run(name, sharded(4),
        {"--zero", zero, "--shard-size", "2", "--gradient-accumulation-steps", "3", "--prefetch", "2"});
    expect_same_numbers(name, "one");
  }
}

TEST_F(ProgramSharding, ThreadsAndProcessesGiveTheSameBits) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  for (const char* zero : {"1", "3"}) {
    const Words more = {"--zero",    zero, "--shard-size", "2", "--gradient-accumulation-steps", "2",
                        "--threads", "1"};
    run("threads", sharded(4), more);
    run("mpi", on_mpi(4, "step02_fsdp"), more);
    expect_same_bits("mpi", "threads");
  }
}

TEST_F(ProgramSharding, TheSameRunTwiceGivesTheSameBits) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const Words more = {"--dtype", dtype, "--optimizer", "adamw", "--prefetch", "2"};
    run("first", sharded(4), more);
    run("second", sharded(4), more);
    expect_same_bits("second", "first");
  }
}

TEST_F(ProgramSharding, TrainingGoesOnFromAnExportedFolderInAnotherLayout) {
  const Words still = {"--learning-rate", "0", "--weight-decay", "0"};
  run("one", sharded(2));
  for (const char* zero : {"1", "3"}) {
    run("next", sharded(4), Words{"--init-from", folder_ / "one", "--zero", zero} + still);
    EXPECT_TRUE(folder_.read("next/model.safetensors") == folder_.read("one/model.safetensors"))
        << "stage " << zero;
  }
}

TEST_F(ProgramSharding, MemoryAndTrafficAreToTheByteWhatTheFormulasSay) {
  const std::vector<Words> modes = {
      {"--zero", "0"},
      {"--zero", "1"},
      {"--zero", "2", "--gradient-accumulation-steps", "2"},
      {"--zero", "3", "--gradient-accumulation-steps", "2"},
      {"--prefetch", "0"},
      {"--prefetch", "7", "--tie-word-embeddings"},
      {"--no-reshard-after-forward", "--gradient-accumulation-steps", "3"},
      {"--shard-size", "2", "--zero", "1", "--dtype", "bfloat16"},
      {"--shard-size", "2", "--reduce-dtype", "bfloat16", "--prefetch", "3"},
      {"--dtype", "bfloat16", "--reduce-dtype", "bfloat16", "--recompute", "full"}};
  for (const Words& mode : modes) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(mode, " ")));
    // The held-out text is six windows for four ranks: in the second pass two of them have none.
    const Words batch = {"--steps", "3", "--micro-batch-size", "1", "--eval-every", "2"};
    const ProcessResult result = run_well(sharded(4) + model() + batch + mode);
    // A difference is "=" or so many percent; see report.h.
    const std::string tables = result.out.substr(result.out.find("memory, peak bytes"));
    EXPECT_EQ(occurrences(tables, "%"), 0) << tables;
    EXPECT_EQ(occurrences(tables, "not predicted"), 0) << tables;
    EXPECT_GE(occurrences(tables, " ="), 10) << tables;
  }
}

// The point of the chapter.
TEST_F(ProgramSharding, AModelThatDoesNotFitTrainsInParts) {
  const Words start = {
      "--model", "tiny", "--data",         text_, "--seq-length", "24", "--micro-batch-size", "1",
      "--steps", "2",    "--memory-limit", "8MB"};
  const ProcessResult whole = run_process(sharded(8) + start + Words{"--zero", "0"});
  EXPECT_EQ(whole.exit_code, 1);
  EXPECT_TRUE(mentions(whole.err, {"--memory-limit", "optimizer", "bytes"}));
  const ProcessResult parts = run_well(sharded(8) + start + Words{"--zero", "3"});
  EXPECT_TRUE(mentions(parts.out, {"step 2 | loss"}));
}

// Refused before anything is allocated: one byte of tensors is the limit, and nobody complains about that.
TEST_F(ProgramSharding, RequestsThatCannotBeMetAreRefused) {
  const auto expect_refused = [&](const Words& request, const std::vector<std::string>& parts) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(request, " ")));
    const ProcessResult result = run_process(sharded(4) + model() + Words{"--memory-limit", "1"} + request);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_TRUE(mentions(result.err, parts));
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
    EXPECT_EQ(result.out, "");
  };
  expect_refused({"--shard-size", "3"}, {"--shard-size 3", "4 data-parallel ranks", "--shard-size 2 or 4"});
  expect_refused({"--shard-size", "0"}, {"--shard-size", "0"});
  expect_refused({"--zero", "0", "--shard-size", "2"}, {"--zero 0", "--shard-size 2"});
  expect_refused({"--zero", "4"}, {"--zero", "3", "4"});
  expect_refused({"--prefetch", "-1"}, {"--prefetch", "-1"});
  expect_refused({"--dtype", "float64", "--reduce-dtype", "bfloat16"},
                 {"--reduce-dtype bfloat16", "--dtype float64"});
  expect_refused({"--reduce-dtype", "float16"}, {"--reduce-dtype", "float32, bfloat16", "float16"});
  expect_refused({"--dp", "3"}, {"4", "dp 3"});
  expect_refused({"--dp-mode", "naive"}, {"--dp-mode"});
  expect_refused({"--tp", "2"}, {"--tp", "not tensor parallel"});
}

}  // namespace
}  // namespace escalera
