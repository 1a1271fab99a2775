// Requests that cannot be carried out: refused before anything is allocated or written, with one message that names what
// clashes, and exit code 2.
#include <fmt/ranges.h>
#include <unistd.h>

#include "tests/support/program_run.h"

namespace escalera {
namespace {

class Refusal : public testing::Test {
 protected:
  /// Four ranks with `request` appended to a good command line. One byte of tensors is the limit: a program that allocated
  /// before it checked would complain about that instead.
  void expect_refused(const Words& request, const std::vector<std::string>& parts) const {
    SCOPED_TRACE(fmt::format("{}", fmt::join(request, " ")));
    const ProcessResult result =
        run_process(on_threads(4) + small_model(text_) + Words{"--memory-limit", "1"} + request);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_TRUE(mentions(result.err, parts));
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
    EXPECT_EQ(result.out, "");
  }

  TemporaryDirectory folder_;
  std::string text_ = folder_.write("text.txt", repetitive_text(3000));
};

// So that the limit above would be noticed, and the rest of the command line is good.
TEST_F(Refusal, TheCommandLineOfTheseTestsIsGoodButForTheLimit) {
  const ProcessResult result = run_process(on_threads(4) + small_model(text_) + Words{"--memory-limit", "1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(mentions(result.err, {"--memory-limit"}));
  run_well(on_threads(4) + small_model(text_) + Words{"--steps", "1"});
}

TEST_F(Refusal, UnknownOptions) {
  expect_refused({"--learning-rte", "0.1"}, {"--learning-rte", "did you mean --learning-rate?"});
  expect_refused({"--lerning-rate=0.1"}, {"--lerning-rate", "did you mean --learning-rate?"});
  expect_refused({"steps", "5"}, {"'steps'"});
  expect_refused({"--tp", "2"}, {"--tp", "not tensor parallel"});
  expect_refused({"--save-dir", "here"}, {"--save-dir", "--export"});
}

TEST_F(Refusal, ValuesThatAreNone) {
  expect_refused({"--steps", "ten"}, {"--steps", "ten"});
  expect_refused({"--steps", "0"}, {"--steps", "1", "0"});
  expect_refused({"--steps", "1.5"}, {"--steps", "1.5"});
  expect_refused({"--micro-batch-size", "-1"}, {"--micro-batch-size", "-1"});
  expect_refused({"--learning-rate", "nan"}, {"--learning-rate", "nan"});
  expect_refused({"--clip", "-1"}, {"--clip", "-1"});
  expect_refused({"--dp-mode", "overlaped"}, {"--dp-mode", "did you mean overlapped?"});
  expect_refused({"--optimizer", "adam"}, {"--optimizer", "adamw", "sgd"});
  expect_refused({"--model", "tinny"}, {"--model", "tinny", "did you mean tiny?"});
  expect_refused({"--steps"}, {"--steps", "needs a value"});
  expect_refused({"--metrics", "--steps", "5"}, {"--metrics", "needs a value"});
}

TEST_F(Refusal, ModelsThatDoNotFitTogether) {
  expect_refused({"--num-attention-heads", "8", "--num-key-value-heads", "3"},
                 {"--num-attention-heads 8", "--num-key-value-heads 3"});
  expect_refused({"--hidden-size", "50"}, {"--hidden-size 50", "--num-attention-heads 6"});
  expect_refused({"--hidden-size", "30"}, {"head size is 5", "--hidden-size 30"});
  expect_refused({"--max-position-embeddings", "16"}, {"--seq-length 24", "--max-position-embeddings 16"});
}

TEST_F(Refusal, ModelsThatDoNotFitTheMachine) {
  expect_refused({"--hidden-size", "240000"}, {"need", "4 ranks of this host", "--hidden-size"});
  expect_refused({"--num-hidden-layers", "2147483647", "--hidden-size", "240000"},
                 {"--num-hidden-layers 2147483647", "--hidden-size 240000", "parameters"});
}

TEST_F(Refusal, OutputsThatWouldDestroyAnInputOrEachOther) {
  expect_refused({"--metrics", text_}, {"--metrics", "--data", "text.txt"});
  expect_refused({"--dump-gradients", text_}, {"--dump-gradients", "--data"});
  expect_refused({"--export", folder_.path(), "--trace", folder_ / "model.safetensors"}, {"--export", "--trace"});
  EXPECT_EQ(folder_.read("text.txt").size(), 3000U);
}

TEST_F(Refusal, NamesThatAreEmptyAndBucketsThatOverflow) {
  expect_refused({"--export", ""}, {"--export", "empty"});
  expect_refused({"--bucket-mb", "1e300"}, {"--bucket-mb", "at most", "1e300"});
}

// C03, C33
TEST_F(Refusal, LayoutsThatDoNotFitTheNumberOfRanks) {
  expect_refused({"--ranks", "6", "--dp", "4"}, {"6", "dp 4"});
  expect_refused({"--dp", "0"}, {"--dp", "0"});
  expect_refused({"--dp", "-1"}, {"--dp", "-1"});
  expect_refused({"--ranks", "0"}, {"--ranks", "0"});
  expect_refused({"--ranks", "2", "--global-batch-size", "10", "--micro-batch-size", "2"},
                 {"--global-batch-size 10", "--micro-batch-size 2", "2 data-parallel ranks"});
  expect_refused({"--global-batch-size", "10"},
                 {"--global-batch-size 10", "4 data-parallel ranks", "8 or 12"});
  expect_refused(
      {"--global-batch-size", "8", "--micro-batch-size", "2", "--gradient-accumulation-steps", "2"},
      {"--global-batch-size 8", "--micro-batch-size 2", "--gradient-accumulation-steps 2", "16"});
}

TEST_F(Refusal, SchedulesAndMachinesThatAreNotThere) {
  expect_refused({"--steps", "10", "--stop-after", "11"}, {"--stop-after 11", "--steps 10"});
  expect_refused({"--learning-rate", "0.1", "--min-learning-rate", "0.2"},
                 {"--min-learning-rate 0.2", "--learning-rate 0.1"});
  expect_refused({"--lr-schedule", "wsd", "--warmup-steps", "8", "--decay-steps", "8", "--steps", "10"},
                 {"--warmup-steps 8", "--decay-steps 8", "--steps 10"});
  expect_refused({"--threads", "2"}, {"--threads 2", "--threads 1"});
  expect_refused({"--comm", "nccl"}, {"--comm nccl"});
}

// C25, C26, C27
TEST_F(Refusal, Data) {
  expect_refused({"--data", folder_ / "nothing.txt"}, {"--data", "nothing.txt", "No such file"});
  expect_refused({"--data", folder_.path()}, {"--data", folder_.path()});
  expect_refused({"--data", folder_.write("empty.txt", "")}, {"--data", "empty.txt", "empty"});
  expect_refused({"--data", folder_.write("short.txt", std::string(24, 'a'))},
                 {"--data", "short.txt", "24 tokens", "--seq-length 24", "25"});
  expect_refused({"--data", folder_.write("short.txt", std::string(40, 'a')), "--eval-every", "1"},
                 {"--data", "short.txt", "40 tokens", "--seq-length 24", "50"});
  expect_refused({"--data", folder_.write("odd.bin", std::string(2001, 'a')), "--token-width", "16"},
                 {"--data", "odd.bin", "2001 bytes", "--token-width 16"});

  std::vector<std::uint32_t> tokens(2000, 60);
  tokens[1000] = 256;
  for (const int width : {16, 32}) {
    expect_refused({"--data", folder_.write("tokens.bin", raw_tokens(tokens, width)), "--token-width",
                    fmt::format("{}", width)},
                   {"--data", "tokens.bin", "offset 1000", "256"});
  }
  // Read with the width of another file: half of each token, or bytes of it.
  tokens.assign(2000, 70'000);
  const std::string wide = folder_.write("wide.bin", raw_tokens(tokens, 32));
  expect_refused({"--data", wide, "--token-width", "16", "--vocab-size", "80000"},
                 {"wide.bin", "--token-width 32"});
  expect_refused({"--data", wide, "--vocab-size", "80000"}, {"wide.bin", "--token-width"});
  // llm.c's header, which promises more than there is.
  std::vector<std::uint32_t> header(256, 0);
  header[0] = 20240520, header[1] = 1, header[2] = 500;
  const std::string cut = folder_.write("cut.bin", raw_tokens(header, 32) + std::string(200, 'a'));
  expect_refused({"--data", cut}, {"cut.bin", "500 tokens", "1000 bytes", "200 bytes"});
  expect_refused({"--data", cut, "--token-width", "32"}, {"cut.bin", "16-bit", "--token-width is 32"});
}

// C26: a step is never made of the same sample twice.
TEST_F(Refusal, TextTooShortForOneStep) {
  const Words batch = {"--micro-batch-size", "2", "--steps", "2", "--memory-limit", "0"};
  const std::string enough = folder_.write("enough.txt", repetitive_text(2 * 4 * 24 + 1));
  run_well(on_threads(4) + small_model(enough) + batch);
  const std::string less = folder_.write("less.txt", repetitive_text(2 * 4 * 24));
  expect_refused(batch + Words{"--memory-limit", "1", "--data", less},
                 {"less.txt", "192 tokens", "8 sequences", "--seq-length 24", "193"});
}

TEST_F(Refusal, FilesThatCannotBeReadOrWritten) {
  expect_refused({"--init-from", folder_ / "nothing"}, {"--init-from", "nothing", "no such folder"});
  expect_refused({"--metrics", folder_ / "missing/metrics.jsonl"}, {"--metrics", "missing", "no folder"});
  expect_refused({"--trace", folder_.path()}, {"--trace", folder_.path(), "is a folder"});
  expect_refused({"--dump-gradients", text_ + "/gradients"}, {"--dump-gradients", "text.txt"});
  expect_refused({"--export", text_ + "/model"}, {"--export", "text.txt is not a folder"});
  expect_refused({"--metrics", folder_ / "same", "--trace", folder_ / "same"},
                 {"--metrics", "--trace", "same"});
  EXPECT_EQ(folder_.count(), 1) << "a refused run has left a file";
  if (geteuid() == 0) return;  // root may write anywhere
  std::filesystem::create_directory(folder_ / "locked");
  std::filesystem::permissions(folder_ / "locked",
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  expect_refused({"--metrics", folder_ / "locked/metrics.jsonl"}, {"--metrics", "locked"});
  expect_refused({"--export", folder_ / "locked/model"}, {"--export", "locked"});
}

// C33
TEST_F(Refusal, ConfigurationFiles) {
  const auto config = [&](const std::string& json) {
    return Words{"--config", folder_.write("run.json", json)};
  };
  expect_refused(config(R"({"training": {"learning_rte": 0.1}})"),
                 {"run.json", "training.learning_rte", "did you mean training.learning_rate?"});
  expect_refused(config(R"({"trainning": {"learning_rate": 0.1}})"),
                 {"run.json", "trainning.learning_rate", "training.learning_rate"});
  expect_refused(config(R"({"training": {"seq_length": "64"}})"),
                 {"run.json", "training.seq_length", "whole number", "64"});
  expect_refused(config(R"({"distributed": {"dp_size": 2, "dp_size": 4}})"),
                 {"run.json", "distributed.dp_size", "twice"});
  expect_refused(config(R"({"distributed": {"dp_size": 0}})"), {"run.json", "distributed.dp_size", "0"});
  expect_refused(config(R"({"training": {"seq_length": 64,}})"), {"run.json", "line 1"});
  expect_refused({"--config", folder_ / "nothing.json"}, {"nothing.json", "no such file"});
}

TEST_F(Refusal, FlagsOverrideTheConfigurationFile) {  // so that the tests above know that the file is read
  const std::string file =
      folder_.write("run.json", R"({"training": {"total_train_steps": 7, "learning_rate": 0.25}})");
  const ProcessResult result =
      run_well(on_threads(1) + small_model(text_) + Words{"--config", file, "--steps", "2"});
  EXPECT_EQ(occurrences(result.out, "\nstep "), 2);
  EXPECT_TRUE(mentions(result.out, {"2.50e-01"}));
}

TEST_F(Refusal, LeavesAnExistingExportAlone) {
  const Words exporting = {"--steps", "1", "--export", folder_ / "model"};
  run_well(on_threads(2) + small_model(text_) + exporting);
  const std::string weights = folder_.read("model/model.safetensors"),
                    config = folder_.read("model/config.json");
  ASSERT_FALSE(weights.empty());
  expect_refused(exporting + Words{"--seed", "2", "--dp", "3"}, {"dp 3"});
  expect_refused(exporting + Words{"--seed", "2", "--data", folder_ / "nothing"}, {"nothing"});
  EXPECT_TRUE(folder_.read("model/model.safetensors") == weights);
  EXPECT_TRUE(folder_.read("model/config.json") == config);
}

// With processes, each of which could speak for itself.
TEST_F(Refusal, ProcessesSpeakOnce) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  std::vector<std::uint32_t> tokens(2000, 60);
  tokens[1000] = 300;
  const std::string bad = folder_.write("tokens.bin", raw_tokens(tokens, 16));
  const std::vector<std::pair<Words, std::string>> requests = {
      {{"--learning-rte", "0.1"}, "unknown option --learning-rte"},
      {{"--dp", "4"}, "make 4 ranks, but 6 are running"},
      {{"--data", bad, "--token-width", "16"}, "offset 1000 has id 300"}};
  for (const auto& [request, message] : requests) {
    const ProcessResult result =
        run_process(on_mpi(6) + small_model(text_) + Words{"--memory-limit", "1"} + request);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_EQ(occurrences(result.err, message), 1) << result.err;
  }
}

TEST_F(Refusal, HelpIsNoRefusal) {
  const ProcessResult result = run_well({on_threads(1)[0], "--help"});
  EXPECT_TRUE(mentions(result.out,
                       {"usage: step01_dp", "--dp-mode", "naive|bucketed|overlapped", "--learning-rate"}));
  EXPECT_EQ(result.err, "");
}

}  // namespace
}  // namespace escalera
