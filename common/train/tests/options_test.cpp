// The options of a run and the checks between them.
#include "common/train/options.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/refusal.h"

namespace escalera {
namespace {

/// Options as a command line sets them, checked for `world` ranks that are all data parallel.
TrainOptions parsed(const std::vector<std::string>& arguments, int world = 1) {
  TrainOptions options;
  OptionTable table("program", "");
  add_train_options(table, options);
  table.parse(arguments);
  validate(options, world, world);
  return options;
}

std::string refused(const std::vector<std::string>& arguments, int world = 1) {
  return refusal([&] { parsed(arguments, world); });
}

TEST(Options, DefaultsAreARunnableTrainer) {
  const TrainOptions options = parsed({});
  EXPECT_EQ(options.model.hidden_size, 128);
  EXPECT_EQ(options.micro_batch_size, 8);
  EXPECT_EQ(options.gradient_accumulation_steps, 1);
  EXPECT_EQ(options.global_batch_size, 8);
  EXPECT_EQ(options.stop_after, options.steps);
  EXPECT_EQ(options.min_learning_rate, options.learning_rate / 10);
  EXPECT_EQ(options.decay_steps, options.steps);
  EXPECT_EQ(options.device, DeviceKind::cpu);
  EXPECT_EQ(options.launcher, CommKind::mpi);
  EXPECT_GE(options.threads.value(), 1);
}

TEST(Options, TheBatchMustComeOutEven) {
  // 10 sequences, 2 per micro-batch, 2 ranks: 2.5 micro-batches each.
  EXPECT_TRUE(mentions(
      refused({"--global-batch-size", "10", "--micro-batch-size", "2"}, 2),
      {"--global-batch-size 10", "--micro-batch-size 2", "2 data-parallel ranks", "8 or 12 would work"}));
  EXPECT_EQ(refused({"--global-batch-size", "12", "--micro-batch-size", "2"}, 2), "");
  EXPECT_EQ(refused({"--global-batch-size", "8", "--micro-batch-size", "2"}, 2), "");
  EXPECT_TRUE(mentions(refused({"--global-batch-size", "3"}, 4),
                       {"3", "4 data-parallel ranks", "--global-batch-size 4"}));
  EXPECT_TRUE(mentions(refused({"--global-batch-size", "10", "--gradient-accumulation-steps", "4"}, 2),
                       {"10", "--gradient-accumulation-steps 4", "8 or 16"}));
  EXPECT_TRUE(mentions(
      refused({"--global-batch-size", "16", "--micro-batch-size", "2", "--gradient-accumulation-steps", "2"},
              2),
      {"--micro-batch-size 2", "--gradient-accumulation-steps 2", "8 sequences", "--global-batch-size 16",
       "--global-batch-size 8"}));
}

TEST(Options, WhatIsLeftOpenInTheBatchIsDerived) {
  TrainOptions options = parsed({"--micro-batch-size", "3", "--gradient-accumulation-steps", "2"}, 4);
  EXPECT_EQ(options.global_batch_size, 24);
  EXPECT_EQ(options.tokens_per_step(), 24 * 256);
  options = parsed({"--global-batch-size", "24", "--micro-batch-size", "3"}, 4);
  EXPECT_EQ(options.micro_batches(), 2);
  options = parsed({"--global-batch-size", "24", "--gradient-accumulation-steps", "2"}, 4);
  EXPECT_EQ(options.micro_batch_size, 3);
  options = parsed({"--global-batch-size", "40"},
                   4);  // ten sequences per rank: five is the largest divisor up to eight
  EXPECT_EQ(options.micro_batch_size, 5);
  EXPECT_EQ(options.micro_batches(), 2);
}

TEST(Options, ModelKeysReplaceThoseOfThePreset) {
  const TrainOptions options =
      parsed({"--model", "small", "--num-hidden-layers", "2", "--tie-word-embeddings"});
  EXPECT_EQ(options.model.hidden_size, 256);
  EXPECT_EQ(options.model.num_hidden_layers, 2);
  EXPECT_TRUE(options.model.tie_word_embeddings);
  EXPECT_FALSE(parsed({"--model", "smollm-135m", "--tie-word-embeddings=false"}).model.tie_word_embeddings);
  EXPECT_TRUE(mentions(refused({"--num-key-value-heads", "3"}),
                       {"--num-attention-heads 8", "--num-key-value-heads 3"}));
  EXPECT_TRUE(mentions(refused({"--model", "smal"}), {"did you mean small?"}));
}

TEST(Options, SequencesLongerThanTheModelAreRefused) {
  EXPECT_TRUE(mentions(refused({"--seq-length", "4096"}),
                       {"--seq-length 4096", "--max-position-embeddings 2048", "raise the other to 4096"}));
  EXPECT_EQ(refused({"--seq-length", "4096", "--max-position-embeddings", "4096"}), "");
}

TEST(Options, TheScheduleIsChecked) {
  EXPECT_TRUE(mentions(refused({"--steps", "10", "--stop-after", "11"}), {"--stop-after 11", "--steps 10"}));
  EXPECT_TRUE(mentions(refused({"--learning-rate", "1e-4", "--min-learning-rate", "1e-3"}),
                       {"--min-learning-rate", "--learning-rate"}));
  const TrainOptions options = parsed({"--lr-schedule", "wsd", "--steps", "100", "--warmup-steps", "10"});
  EXPECT_EQ(options.decay_steps, 20);
  // The documented list: warm-up 4, stable 2, decay 4.
  const LearningRateSchedule schedule =
      parsed({"--lr-schedule", "wsd", "--steps", "10", "--warmup-steps", "4", "--decay-steps", "4",
              "--learning-rate", "1", "--min-learning-rate", "0"})
          .schedule();
  const std::vector<double> expected = {0.25, 0.5, 0.75, 1, 1, 1, 0.75, 0.5, 0.25, 0};
  for (Index step = 1; step <= 10; ++step) {
    EXPECT_DOUBLE_EQ(schedule.at(step), expected[static_cast<std::size_t>(step - 1)]) << step;
  }
  EXPECT_EQ(refused({"--warmup-steps", "1000"}), "")
      << "a warm-up longer than the run is cut off, not refused";
  EXPECT_EQ(refused({"--decay-steps", "0"}), "");
}

TEST(Options, RanksAndThreadsMustAgree) {
  EXPECT_EQ(parsed({"--ranks", "4"}, 4).launcher, CommKind::threads);
  EXPECT_EQ(parsed({"--ranks", "4"}, 4).threads, 1);
  EXPECT_TRUE(mentions(refused({"--comm", "threads", "--ranks", "4", "--threads", "2"}, 4),
                       {"--threads 2", "--threads 1"}));
  EXPECT_TRUE(
      mentions(refused({"--comm", "mpi", "--ranks", "4"}, 2), {"--ranks 4", "here 2", "mpirun -n 4"}));
  EXPECT_TRUE(mentions(refused({"--comm", "nccl"}), {"--comm nccl", "--comm mpi"}));
  TrainOptions options;
  options.ranks = 3;
  EXPECT_EQ(launch_options(options).kind, CommKind::threads);
  EXPECT_EQ(launch_options(options).ranks, 3);
  options.comm = CommChoice::mpi;
  EXPECT_EQ(launch_options(options).kind, CommKind::mpi);
}

TEST(Options, TokenWidthsAreThoseOfFiles) {
  EXPECT_EQ(parsed({"--token-width", "16"}).token_width, 16);
  EXPECT_TRUE(mentions(refused({"--token-width", "12"}), {"--token-width must be 0, 8, 16 or 32, not 12"}));
}

TEST(Options, WhatOtherTrainersHaveIsExplained) {
  EXPECT_TRUE(mentions(refused({"--save-dir", "x"}), {"--save-dir is not available", "--export"}));
  EXPECT_TRUE(mentions(refused({"--resume", "x"}), {"--resume is not available"}));
  EXPECT_TRUE(mentions(refused({"--tp", "2"}), {"--tp is not available", "not tensor parallel"}));
}

TEST(Options, MistypedOptionsEndWithExitCodeTwo) {
  for (const std::vector<const char*>& line : {std::vector<const char*>{"program", "--learning-rte", "1"},
                                               {"program", "--steps", "0"},
                                               {"program", "--model", "nothing-like-it"}}) {
    TrainOptions options;
    OptionTable table("program", "");
    add_train_options(table, options);
    int bodies = 0;
    const int code =
        run_program(table, options, static_cast<int>(line.size()), line.data(), [&](Communicator& world) {
          ++bodies;
          validate(options, world.size(), 1);
        });
    EXPECT_EQ(code, 2) << line[1];
    EXPECT_EQ(bodies, std::string(line[1]) == "--model" ? 1 : 0);
  }
}

TEST(Options, HelpEndsWithExitCodeZeroAndRunsNothing) {
  TrainOptions options;
  OptionTable table("program", "");
  add_train_options(table, options);
  const char* line[] = {"program", "--help"};
  testing::internal::CaptureStdout();
  const int code = run_program(table, options, 2, line, [](Communicator&) { FAIL() << "the body ran"; });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(
      mentions(testing::internal::GetCapturedStdout(), {"--learning-rate X", "--micro-batch-size N"}));
}

TEST(Options, ARunIsMadeOfTheRanksThatWereAskedFor) {
  TrainOptions options;
  OptionTable table("program", "");
  add_train_options(table, options);
  const char* line[] = {"program", "--comm", "threads", "--ranks", "3"};
  std::atomic<int> ranks = 0;
  EXPECT_EQ(run_program(table, options, 5, line, [&](Communicator& world) { ranks += world.size(); }), 0);
  EXPECT_EQ(ranks, 9);
}

/// What check_files() says on each of two ranks; the same on both.
std::string files_refused(const TrainOptions& options) {
  std::vector<std::string> messages(2);
  launch({CommKind::threads, 2}, [&](Communicator& world) {
    messages[static_cast<std::size_t>(world.rank())] = refusal([&] { check_files(world, options); });
  });
  EXPECT_EQ(messages[0], messages[1]);
  return messages[0];
}

TEST(CheckFiles, OutputsThatCannotBeWrittenAreRefused) {
  const TemporaryDirectory folder;
  const std::string file = folder.write("precious.txt", "keep me");
  TrainOptions options;
  options.metrics = folder / "missing/metrics.jsonl";
  EXPECT_TRUE(mentions(files_refused(options), {"--metrics", "missing/metrics.jsonl", "there is no folder"}));
  options = {};
  options.trace = folder.path();
  EXPECT_TRUE(mentions(files_refused(options), {"--trace", "is a folder"}));
  options = {};
  options.export_dir = file + "/deep/er";
  EXPECT_TRUE(mentions(files_refused(options), {"--export", "precious.txt is not a folder"}));
  options = {};
  options.dump_gradients = options.metrics = folder / "same";
  EXPECT_TRUE(mentions(files_refused(options), {"--metrics", "--dump-gradients", "same"}));
  options = {};
  options.init_from = folder / "nothing";
  EXPECT_TRUE(mentions(files_refused(options), {"--init-from", "no such folder"}));
}

TEST(CheckFiles, LooksWithoutTouching) {
  const TemporaryDirectory folder;
  TrainOptions options;
  options.metrics = folder.write("metrics.jsonl", "keep me");
  options.trace = folder / "trace.json";
  options.export_dir = folder / "deep/er";
  EXPECT_EQ(files_refused(options), "");
  EXPECT_EQ(folder.read("metrics.jsonl"), "keep me");
  EXPECT_EQ(folder.count(), 1);
}

}  // namespace
}  // namespace escalera
