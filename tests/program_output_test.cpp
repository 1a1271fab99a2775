// What a run prints and writes: the log, the metrics, the trace and the tables at the end.
#include <fmt/ranges.h>

#include <set>

#include "tests/support/program_run.h"

namespace escalera {
namespace {

class Output : public testing::Test {
 protected:
  TemporaryDirectory folder_;
  std::string text_ = folder_.write("text.txt", repetitive_text(8000));
};

TEST_F(Output, MetricsAreJsonLinesThatAgreeWithTheLog) {
  const ProcessResult result = run_well(
      on_threads(4) + small_model(text_) +
      Words{"--steps", "5", "--micro-batch-size", "2", "--gradient-accumulation-steps", "2", "--eval-every",
            "5", "--eval-steps", "2", "--peak-tflops", "1", "--metrics", folder_ / "metrics.jsonl"});
  const auto lines = metrics_of(folder_ / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 6U);
  const double tokens = 2 * 2 * 4 * 24;
  EXPECT_TRUE(mentions(result.out, {"16 sequences x 24 = 384"})) << "C03: tokens per step";
  for (std::size_t i = 0; i < 5; i++) {
    const nlohmann::json& line = lines[i];
    for (const char* key :
         {"step", "loss", "grad_norm", "learning_rate", "tokens", "tokens_per_second", "mfu"}) {
      ASSERT_TRUE(line.contains(key) && line.at(key).is_number()) << key << " in " << line;
    }
    for (const char* key : {"parameters", "gradients", "optimizer", "activations"}) {
      EXPECT_GT(line.at("memory").at(key).get<double>(), 0) << key;
    }
    EXPECT_GT(line.at("traffic").at("all_reduce").get<double>(), 0);
    EXPECT_EQ(line.at("step"), i + 1);
    EXPECT_EQ(line.at("tokens"), tokens * static_cast<double>(i + 1));
    EXPECT_TRUE(
        mentions(result.out, {fmt::format("\nstep {} | loss {:.4f} | grad norm {:.3f} | lr {:.2e} |", i + 1,
                                          line.at("loss").get<double>(), line.at("grad_norm").get<double>(),
                                          line.at("learning_rate").get<double>())}));
  }
  EXPECT_TRUE(mentions(result.out, {fmt::format("step 5 | validation loss {:.4f}",
                                                lines[5].at("validation_loss").get<double>())}));
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out.find('\r'), std::string::npos) << "a progress line was drawn into a file";
}

// C28: the list in common/optim/schedule.h.
TEST_F(Output, LearningRatesFollowTheSchedule) {
  run_well(on_threads(2) + small_model(text_) +
           Words{"--steps", "10", "--lr-schedule", "wsd", "--learning-rate", "0.001", "--min-learning-rate",
                 "0", "--warmup-steps", "4", "--decay-steps", "4", "--metrics", folder_ / "metrics.jsonl"});
  const std::vector<double> shares = {0.25, 0.5, 0.75, 1, 1, 1, 0.75, 0.5, 0.25, 0};
  const auto lines = metrics_of(folder_ / "metrics.jsonl");
  ASSERT_EQ(lines.size(), shares.size());
  for (std::size_t i = 0; i < shares.size(); i++) {
    EXPECT_NEAR(lines[i].at("learning_rate").get<double>(), 1e-3 * shares[i], 1e-15) << "step " << i + 1;
  }
}

TEST_F(Output, StoppingEarlyDoesNotChangeTheSchedule) {
  const Words common = small_model(text_) + Words{"--steps", "8", "--warmup-steps", "2"};
  run_well(on_threads(2) + common + Words{"--metrics", folder_ / "whole.jsonl"});
  run_well(on_threads(2) + common + Words{"--metrics", folder_ / "part.jsonl", "--stop-after", "5"});
  std::vector<double> whole = losses_of(folder_ / "whole.jsonl");
  whole.resize(5);
  EXPECT_EQ(losses_of(folder_ / "part.jsonl"), whole);
}

/// The events of one rank in a trace file.
struct Row {
  double first_reduction = 1e99, last_backward = 0;
  std::set<std::string> streams;
};

std::map<int, Row> rows_of(const nlohmann::json& trace) {
  std::map<int, Row> rows;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    Row& row = rows[event.at("pid").get<int>()];
    if (event.at("ph") == "M") {
      if (event.at("name") == "thread_name")
        row.streams.insert(event.at("args").at("name").get<std::string>());
      continue;
    }
    EXPECT_GE(event.at("dur").get<double>(), 0);
    const std::string name = event.at("name").get<std::string>();
    const double begin = event.at("ts").get<double>(), end = begin + event.at("dur").get<double>();
    // The reductions of gradients carry bytes; those of the loss and of counts are not all_reduce calls but control messages.
    if (name == "all_reduce") row.first_reduction = std::min(row.first_reduction, begin);
    if (name.starts_with("backward")) row.last_backward = std::max(row.last_backward, end);
  }
  return rows;
}

bool overlaps(const Row& row) {
  return row.first_reduction < row.last_backward;
}

TEST_F(Output, TheTraceShowsEveryRankAndTheOverlap) {
  const auto trace_of = [&](const Words& start, const char* mode) {
    // One step, so that an earlier step's reduction is not taken for an early one; and a backward that is long enough for
    // the thread that communicates to get a core on a busy machine.
    run_well(start + Words{"--data", text_, "--model", "tiny", "--seq-length", "128", "--micro-batch-size",
                           "4", "--steps", "1", "--gradient-accumulation-steps", "2", "--dp-mode", mode,
                           "--trace", folder_ / "trace.json"});
    return rows_of(nlohmann::json::parse(folder_.read("trace.json")));
  };
  std::vector<Words> starts = {on_threads(4)};
  if (has_mpi()) starts.push_back(on_mpi(2));
  for (const Words& start : starts) {
    // What a rank may do it need not manage each time when it shares its core; three tries.
    for (int attempt = 1;; attempt++) {
      bool all_overlap = true;
      const auto rows = trace_of(start, "overlapped");
      EXPECT_EQ(rows.size(), start == starts[0] ? 4U : 2U);
      for (const auto& [rank, row] : rows) {
        EXPECT_TRUE(row.streams.contains("compute") && row.streams.contains("dp")) << "rank " << rank;
        all_overlap = all_overlap && overlaps(row);
      }
      if (all_overlap) break;
      ASSERT_LT(attempt, 3) << "reductions begin after backward: "
                            << fmt::format("{}", fmt::join(start, " "));
    }
  }
  for (const auto& [rank, row] : trace_of(on_threads(4), "bucketed"))
    EXPECT_FALSE(overlaps(row)) << "rank " << rank;
}

/// Rows of the tables at the end that have a prediction: name -> last column.
std::map<std::string, std::string> predicted_rows(const std::string& out) {
  std::map<std::string, std::string> rows;
  for (const std::string& line : lines_of(out)) {
    // Columns stand apart by two spaces at least.
    std::vector<std::string> columns;
    for (std::size_t begin = line.find_first_not_of(' '); begin < line.size();
         begin = line.find_first_not_of(' ', begin)) {
      const std::size_t end = std::min(line.find("  ", begin), line.size());
      columns.push_back(line.substr(begin, end - begin));
      begin = end;
    }
    static const std::set<std::string> names = {"parameters", "gradients", "optimizer", "activations",
                                                "all_reduce"};
    if (columns.size() > 3 && names.contains(columns[0])) rows[columns[0]] = columns.back();
  }
  return rows;
}

using Kind = std::tuple<std::string, std::string, std::string>;
class ReportTables : public testing::TestWithParam<Kind> {};

std::string name_of(const testing::TestParamInfo<Kind>& test) {
  return fmt::format("{}", fmt::join(test.param, "_"));
}
INSTANTIATE_TEST_SUITE_P(Kinds, ReportTables,
                         testing::Combine(testing::Values("float32", "bfloat16", "float64"),
                                          testing::Values("adamw", "sgd"),
                                          testing::Values("none", "selective", "full")),
                         name_of);

TEST_P(ReportTables, MeasureWhatTheFormulasPredict) {
  const auto& [dtype, optimizer, recompute] = GetParam();
  const TemporaryDirectory folder;
  const std::string text = folder.write("text.txt", repetitive_text(3000));
  for (const char* tied : {"true", "false"}) {
    const ProcessResult result = run_well(
        on_threads(2) + small_model(text) +
        Words{"--steps", "2", "--micro-batch-size", "3", "--gradient-accumulation-steps", "2", "--dtype",
              dtype, "--optimizer", optimizer, "--recompute", recompute, "--tie-word-embeddings", tied});
    const auto rows = predicted_rows(result.out);
    EXPECT_EQ(rows.size(), 5U) << result.out;
    for (const auto& [name, difference] : rows)
      EXPECT_EQ(difference, "=") << name << ", tied " << tied << "\n" << result.out;
  }
}

}  // namespace
}  // namespace escalera
