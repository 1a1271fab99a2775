// Step 3's program as a user runs it: the numbers of one process, measured tables equal to the predicted ones, refusals.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <sstream>

#include "common/checkpoint/safetensors.h"
#include "tests/support/compared_runs.h"

namespace escalera {
namespace {

class TensorParallelProgram : public ComparedRuns {
 protected:
  static Words split(int ranks) { return on_threads(ranks, "step03_tp"); }
  /// A model whose 8 heads, 2 of them for keys and values, and 72 feed-forward columns 8 ranks can share out; 257 words.
  Words model() const {
    return small_model(text_) + Words{"--num-attention-heads", "8",  "--hidden-size", "40", "--head-dim", "6",
                                      "--intermediate-size",   "72", "--vocab-size",  "257"};
  }
  void run(const std::string& name, const Words& start, const Words& more) const {
    run_well(start + model() + two_steps(name, "8", "0.1") + Words{"--eval-every", "1", "--eval-steps", "100"} + more);
  }
};

// C04 (the clip is active), C08 (8 heads, 2 key/value heads, 4 ranks)
TEST_F(TensorParallelProgram, WritesTheGradientsAndWeightsOfOneProcess) {
  run("one", split(1), {});
  expect_clipped("one", 1.0);
  const std::vector<std::pair<int, Words>> layouts = {
      {2, {}},
      {4, {"--sequence-parallel"}},
      {8, {"--sequence-parallel", "--tp-overlap", "--gradient-accumulation-steps", "2"}},
      {4, {"--tp", "2", "--tp-overlap", "--recompute", "full"}},
      {4, {"--dp", "2", "--sequence-parallel", "--recompute", "selective"}}};
  for (const auto& [ranks, more] : layouts) {
    SCOPED_TRACE(fmt::format("{} ranks {}", ranks, fmt::join(more, " ")));
    run("many", split(ranks), more);
    expect_same_numbers("many", "one");
  }
  // Padding is nobody's: the exported tables have the vocabulary's rows and no more.
  EXPECT_EQ(SafetensorsReader(folder_ / "many/model.safetensors").info("lm_head.weight").shape,
            (std::vector<Index>{257, 40}));
}

TEST_F(TensorParallelProgram, ProcessesWriteWhatThreadsWrite) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  const Words more = {"--sequence-parallel", "--tp-overlap", "--threads", "1"};
  run("threads", split(2), more);
  run("mpi", on_mpi(2, "step03_tp"), more);
  expect_same_bits("mpi", "threads");
}

TEST_F(TensorParallelProgram, TrainingGoesOnFromAnotherLayoutsExport) {
  run("two", split(2), {});
  run("next", split(8), {"--init-from", folder_ / "two", "--learning-rate", "0", "--weight-decay", "0"});
  EXPECT_TRUE(folder_.read("next/model.safetensors") == folder_.read("two/model.safetensors"));
}

// ---- Measured and predicted -----------------------------------------------------------------------------------------

/// The lines of the tables that have something in their last column, "difference".
std::vector<std::string> predicted_rows(const std::string& output) {
  std::vector<std::string> rows;
  bool in_table = false;
  for (const std::string& line : lines_of(output)) {
    if (line.ends_with("difference")) in_table = true;
    if (line.empty()) in_table = false;
    const bool data = in_table && !line.ends_with("difference") && line.find("---") == std::string::npos;
    const bool without_formula = line.find("workspace") != std::string::npos ||
                                 line.find("all at once") != std::string::npos ||
                                 line.find("control messages") != std::string::npos;
    if (data && !without_formula) rows.push_back(line);
  }
  return rows;
}

TEST_F(TensorParallelProgram, MeasuresEveryByteThatTheFormulasPredict) {
  const std::vector<std::pair<int, Words>> layouts = {
      {1, {"--sequence-parallel", "--tp-overlap"}},
      {2, {}},
      {2, {"--tie-word-embeddings", "true"}},
      {2, {"--tp-overlap", "--optimizer", "sgd"}},
      {2, {"--sequence-parallel", "--recompute", "selective"}},
      {4, {"--sequence-parallel"}},
      {4, {"--sequence-parallel", "--recompute", "full", "--gradient-accumulation-steps", "3"}},
      {4, {"--tp-overlap", "--recompute", "full", "--dtype", "bfloat16"}},
      {8, {"--dtype", "float64"}},
      {8, {"--sequence-parallel", "--tp-overlap"}},
      {8, {"--sequence-parallel", "--tp-overlap", "--micro-batch-size", "1", "--seq-length", "8"}},
      {4,
       {"--tp", "2", "--sequence-parallel", "--tp-overlap", "--recompute", "selective", "--dtype",
        "bfloat16"}},
      {8, {"--tp", "4", "--gradient-accumulation-steps", "2", "--recompute", "full"}},
      {6, {"--tp", "2", "--sequence-parallel", "--num-key-value-heads", "1"}},
  };
  for (const auto& [ranks, more] : layouts) {
    SCOPED_TRACE(fmt::format("{} ranks {}", ranks, fmt::join(more, " ")));
    const ProcessResult result = run_well(
        split(ranks) + model() +
        Words{"--micro-batch-size", "2", "--steps", "3", "--eval-every", "2", "--eval-steps", "2"} + more);
    const std::vector<std::string> rows = predicted_rows(result.out);
    EXPECT_GE(rows.size(), ranks == 1 ? 5U : 8U) << result.out;
    for (const std::string& row : rows) EXPECT_TRUE(row.ends_with(" =")) << row;
  }
}

// ---- Refusals: C08, C15 and the like --------------------------------------------------------------------------------

TEST_F(TensorParallelProgram, RefusesWhatTheRanksCannotShareOut) {
  // One byte of tensors is the limit: a program that allocated before it checked would complain about that instead.
  const auto expect_refused = [&](int ranks, const Words& request, const std::vector<std::string>& parts) {
    SCOPED_TRACE(fmt::format("{} ranks {}", ranks, fmt::join(request, " ")));
    const ProcessResult result =
        run_process(split(ranks) + model() + Words{"--memory-limit", "1"} + request);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_TRUE(mentions(result.err, parts));
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
    EXPECT_EQ(result.out, "");
    // What is offered instead works: of several values, the first.
    const std::regex offer(R"((--tp \d+ --dp \d+|--seq-length \d+)( or --[a-z-]+ \d+)? would work)");
    std::smatch found;
    if (!std::regex_search(result.err, found, offer)) return;
    Words instead;
    std::istringstream words(found[1].str());
    for (std::string word; words >> word;) instead.push_back(word);
    run_well(split(ranks) + model() + request + instead + Words{"--steps", "1"});
  };
  EXPECT_EQ(run_process(split(4) + model() + Words{"--memory-limit", "1"}).exit_code, 1);
  expect_refused(4, {"--num-attention-heads", "6"}, {"--num-attention-heads 6", "--tp 4", "--tp 2"});
  expect_refused(4, {"--no-kv-replication"},
                 {"--num-key-value-heads 2", "--tp 4", "--no-kv-replication", "--tp 2"});
  expect_refused(2, {"--num-attention-heads", "12", "--num-key-value-heads", "3"},
                 {"--num-key-value-heads 3", "--tp 2"});
  expect_refused(4, {"--intermediate-size", "70"},
                 {"--intermediate-size 70", "--tp 4", "--intermediate-size 72"});
  expect_refused(8, {"--sequence-parallel", "--micro-batch-size", "2", "--seq-length", "5"},
                 {"--micro-batch-size 2", "--seq-length 5", "10 rows", "--tp 8", "--seq-length 8"});
  expect_refused(4, {"--sequence-parallel", "--micro-batch-size", "2", "--seq-length", "5"},
                 {"--micro-batch-size 2", "--seq-length 5", "10 rows", "--tp 4", "--seq-length 6"});
  expect_refused(3, {}, {"--num-attention-heads 8", "--tp 3", "--tp 1 --dp 3 would work"});
  expect_refused(7, {}, {"--tp 7", "--tp 1 --dp 7 would work"});
  expect_refused(6, {"--dp", "2"}, {"--tp 3", "--tp 2 --dp 3 would work"});
  expect_refused(6, {"--tp", "4"}, {"6", "--tp 4", "--tp 2 --dp 3 would work"});
  expect_refused(4, {"--tp", "3"}, {"--tp 3 x --dp 1", "--tp 2 --dp 2 would work"});
  expect_refused(4, {"--tp", "0"}, {"--tp", "0"});
  expect_refused(4, {"--tp", "2", "--dp", "4"}, {"4", "--tp 2 x --dp 4", "--tp 2 --dp 2 would work"});
}

TEST_F(TensorParallelProgram, RefusesAVocabularyThatLeavesARankWithNothing) {
  const std::string tokens = folder_.write("tokens.bin", raw_tokens(std::vector<std::uint32_t>(2000, 3), 16));
  const ProcessResult result =
      run_process(split(8) + model() +
                  Words{"--data", tokens, "--token-width", "16", "--vocab-size", "9"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(mentions(result.err, {"--vocab-size 9", "--tp 8", "--vocab-size 16"}));
}

}  // namespace
}  // namespace escalera
