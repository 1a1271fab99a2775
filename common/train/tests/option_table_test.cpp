// The table of options: flags, JSON, precedence, and how slips are refused.
#include "common/train/option_table.h"

#include <gtest/gtest.h>

#include "tests/support/refusal.h"

namespace escalera {
namespace {

enum class Fruit { apple, pear };

/// A program with an option of each kind.
struct Program {
  Program() {
    table.section("Numbers");
    table.add("--steps", "training.total_train_steps", steps, "steps");
    table.add("--tp", "distributed.tp_size", tp, "ranks");
    table.add("--seed", "training.seed", seed, "seed", {0});
    table.add("--maybe", "training.maybe", maybe, "optional number", {0, 10});
    table.add("--learning-rate", "training.learning_rate", rate, "rate");
    table.add("--beta", "training.beta", beta, "decay", {0.0, 1.0, false, true});
    table.section("Others");
    table.add("--tie", "model.tie", tie, "switch");
    table.add("--untie", "model.untie", untie, "optional switch");
    table.add("--data", "dataset.path", data, "file", "FILE");
    table.add_bytes("--memory-limit", "training.memory_limit", memory, "limit");
    table.add_choice("--fruit", "model.fruit", fruit, {{"apple", Fruit::apple}, {"pear", Fruit::pear}},
                     "which");
    table.explain_missing("--resume", "checkpoint.load_path", "there are no checkpoints");
  }
  /// Parses and returns the refusal, or "".
  std::string refused(const std::vector<std::string>& arguments) {
    return refusal([&] { table.parse(arguments); });
  }
  std::string refused_json(const std::string& text) {
    const std::string file = folder.write("run.json", text);
    return refused({"--config", file});
  }

  Index steps = 100;
  int tp = 1;
  std::uint64_t seed = 1;
  std::optional<Index> maybe;
  double rate = 1e-3;
  std::optional<double> beta;
  bool tie = false;
  std::optional<bool> untie;
  std::string data = "data.txt";
  Index memory = 0;
  Fruit fruit = Fruit::apple;
  OptionTable table{"program", "A program for tests."};
  TemporaryDirectory folder;
};

TEST(OptionTable, NothingGivenLeavesTheDefaults) {
  Program program;
  EXPECT_TRUE(program.table.parse(std::vector<std::string>{}));
  EXPECT_EQ(program.steps, 100);
  EXPECT_FALSE(program.maybe.has_value());
  EXPECT_FALSE(program.table.given("--steps"));
}

TEST(OptionTable, FlagsOfEveryKindAreRead) {
  Program program;
  EXPECT_TRUE(program.table.parse({"--steps", "7", "--seed=0", "--maybe", "0", "--learning-rate", "3e-4",
                                   "--beta", "0.95", "--tie", "--untie", "false", "--data", "a b.txt",
                                   "--memory-limit", "1.5GB", "--fruit", "pear"}));
  EXPECT_EQ(program.steps, 7);
  EXPECT_EQ(program.seed, 0U);
  EXPECT_EQ(program.maybe, 0);
  EXPECT_EQ(program.rate, 3e-4);
  EXPECT_EQ(program.beta, 0.95);
  EXPECT_TRUE(program.tie);
  EXPECT_EQ(program.untie, false);
  EXPECT_EQ(program.data, "a b.txt");
  EXPECT_EQ(program.memory, 1500000000);
  EXPECT_EQ(program.fruit, Fruit::pear);
  EXPECT_TRUE(program.table.given("--steps"));
}

TEST(OptionTable, ABareSwitchDoesNotEatItsNeighbour) {
  Program program;
  EXPECT_TRUE(program.table.parse({"--tie", "--steps", "7"}));
  EXPECT_TRUE(program.tie);
  EXPECT_EQ(program.steps, 7);
}

TEST(OptionTable, EverySwitchHasAFormThatSaysNo) {
  Program program;
  program.tie = true;
  EXPECT_TRUE(program.table.parse({"--no-tie", "--untie", "--no-untie"}));  // of two, the last wins
  EXPECT_FALSE(program.tie);
  EXPECT_EQ(program.untie, false);
  EXPECT_TRUE(mentions(program.refused({"--no-steps"}), {"--no-steps"}));  // not a switch
}

TEST(OptionTable, OfAFlagGivenTwiceTheLastWins) {
  Program program;
  program.table.parse({"--steps", "7", "--tie", "--steps", "8", "--tie", "false"});
  EXPECT_EQ(program.steps, 8);
  EXPECT_FALSE(program.tie);
}

TEST(OptionTable, FlagsBeatTheFileWhereverTheyStand) {
  Program program;
  const std::string file = program.folder.write("run.json", R"({
    "training": {"total_train_steps": 5, "learning_rate": 1, "memory_limit": "2KiB", "maybe": null},
    "model": {"tie": true, "fruit": "pear"}, "dataset": {}})");
  EXPECT_TRUE(program.table.parse({"--steps", "9", "--config", file}));
  EXPECT_EQ(program.steps, 9);
  EXPECT_EQ(program.rate, 1.0);
  EXPECT_EQ(program.memory, 2048);
  EXPECT_TRUE(program.tie);
  EXPECT_EQ(program.fruit, Fruit::pear);
  EXPECT_FALSE(program.maybe.has_value());
  EXPECT_TRUE(program.table.given("--learning-rate"));
}

TEST(OptionTable, UnknownFlagsAreRefusedWithTheNearest) {
  Program program;
  EXPECT_TRUE(mentions(program.refused({"--lerning-rate", "1"}),
                       {"--lerning-rate", "did you mean --learning-rate?"}));
  EXPECT_TRUE(mentions(program.refused({"--learning_rate=1"}), {"did you mean --learning-rate?"}));
  EXPECT_TRUE(mentions(program.refused({"-steps", "1"}), {"-steps", "did you mean --steps?"}));
  const std::string far = program.refused({"--wholly-different", "1"});
  EXPECT_TRUE(mentions(far, {"unknown option --wholly-different", "--help"}));
  EXPECT_EQ(far.find("did you mean"), std::string::npos);
  EXPECT_TRUE(mentions(program.refused({"stray"}), {"stray"}));
  EXPECT_TRUE(mentions(program.refused({"--resume"}), {"--resume", "program", "there are no checkpoints"}));
  EXPECT_EQ(program.steps, 100) << "a refused command line must set nothing";
}

TEST(OptionTable, MissingValuesAreNoticed) {
  Program program;
  EXPECT_TRUE(mentions(program.refused({"--steps"}), {"--steps needs a value"}));
  EXPECT_TRUE(mentions(program.refused({"--data", "--steps", "3"}), {"--data needs a value"}));
}

TEST(OptionTable, NumbersAreChecked) {
  Program program;
  EXPECT_TRUE(mentions(program.refused({"--tp", "0"}), {"--tp must be from 1", "not 0"}));
  EXPECT_TRUE(mentions(program.refused({"--tp", "-1"}), {"--tp must be from 1", "not -1"}));
  EXPECT_TRUE(mentions(program.refused({"--tp", "4294967297"}), {"--tp", "4294967297"}));
  EXPECT_TRUE(mentions(program.refused({"--steps", "-1"}), {"--steps must be at least 1, not -1"}));
  EXPECT_TRUE(
      mentions(program.refused({"--steps", "99999999999999999999"}), {"--steps", "99999999999999999999"}));
  for (const char* text : {"1.5", "ten", "1e3", "", "0x10", "7 "}) {
    EXPECT_TRUE(mentions(program.refused({"--steps", text}), {"--steps must be a whole number"})) << text;
  }
  for (const char* text : {"nan", "inf", "-inf", "-1", "1e999"}) {
    EXPECT_TRUE(mentions(program.refused({"--learning-rate", text}), {"--learning-rate must be at least 0"}))
        << text;
  }
  EXPECT_TRUE(mentions(program.refused({"--learning-rate", "1,5"}), {"--learning-rate must be a number"}));
  EXPECT_TRUE(
      mentions(program.refused({"--beta", "1"}), {"--beta must be at least 0 and less than 1, not 1"}));
  EXPECT_TRUE(mentions(program.refused({"--memory-limit", "-5"}), {"--memory-limit", "512MiB"}));
  EXPECT_TRUE(mentions(program.refused({"--memory-limit", "5 parsec"}), {"5 parsec"}));
  EXPECT_TRUE(mentions(program.refused({"--tie", "maybe"}), {"--tie must be true or false"}));
  EXPECT_TRUE(mentions(program.refused({"--fruit", "peer"}), {"apple, pear", "did you mean pear?"}));
}

TEST(OptionTable, UnknownKeysAreRefusedWithTheNearest) {
  Program program;
  EXPECT_TRUE(mentions(program.refused_json(R"({"training": {"learning_rte": 1}})"),
                       {"run.json", "training.learning_rte", "did you mean training.learning_rate?"}));
  EXPECT_TRUE(mentions(program.refused_json(R"({"training": {"tp_size": 1}})"),
                       {"did you mean distributed.tp_size?"}));
  EXPECT_TRUE(mentions(program.refused_json(R"({"trainin": {"seed": 1}})"), {"did you mean training.seed?"}));
  EXPECT_TRUE(
      mentions(program.refused_json(R"({"checkpoint": {"load_path": "x"}})"), {"there are no checkpoints"}));
}

TEST(OptionTable, WrongTypesAreRefusedWithTheirPlace) {
  Program program;
  EXPECT_TRUE(mentions(program.refused_json(R"({"training": {"total_train_steps": "ten"}})"),
                       {"run.json: training.total_train_steps", "whole number", "\"ten\""}));
  EXPECT_TRUE(mentions(program.refused_json(R"({"training": {"total_train_steps": 10.0}})"),
                       {"whole number", "10.0"}));
  EXPECT_TRUE(
      mentions(program.refused_json(R"({"training": {"learning_rate": "1"}})"), {"must be a number"}));
  EXPECT_TRUE(mentions(program.refused_json(R"({"model": {"tie": 1}})"), {"true or false"}));
  EXPECT_TRUE(mentions(program.refused_json(R"({"dataset": {"path": 5}})"), {"dataset.path", "text"}));
  EXPECT_TRUE(mentions(program.refused_json(R"({"dataset": {"path": {}}})"), {"dataset.path", "text"}));
  EXPECT_TRUE(mentions(program.refused_json(R"({"training": 5})"), {"training must be an object"}));
  EXPECT_TRUE(
      mentions(program.refused_json(R"({"training": {"total_train_steps": 0}})"), {"at least 1, not 0"}));
}

TEST(OptionTable, BrokenFilesAreRefusedWithTheirPlace) {
  Program program;
  EXPECT_TRUE(mentions(program.refused_json(R"({"training": {"seed": 1, "seed": 2}})"),
                       {"training.seed appears twice"}));
  EXPECT_TRUE(
      mentions(program.refused_json(R"({"training": {}, "training": {}})"), {"training appears twice"}));
  EXPECT_TRUE(
      mentions(program.refused_json("{\n  \"training\": {\n    oops\n"), {"run.json", "line 3, column"}));
  EXPECT_TRUE(mentions(program.refused_json("{\"a\": 1"), {"line 1"}));
  EXPECT_TRUE(mentions(program.refused({"--config", "/no/such/file.json"}), {"/no/such/file.json"}));
  EXPECT_TRUE(mentions(program.refused({"--config", program.folder.path()}), {"folder"}));
  EXPECT_TRUE(mentions(program.refused({"--config="}), {"--config needs a value"}));
}

TEST(OptionTable, HelpListsEveryOptionWithDefaultAndKey) {
  Program program;
  EXPECT_FALSE(program.table.parse({"--steps", "0", "--help"})) << "help does not judge";
  EXPECT_FALSE(program.table.parse({"-h"}));
  const std::string help = program.table.help();
  EXPECT_TRUE(
      mentions(help, {"usage: program", "--config FILE", "Numbers:", "--steps N", "(default 100)",
                      "[training.total_train_steps]", "Others:", "--fruit apple|pear", "(default apple)"}));
  std::size_t begin = 0;
  for (std::size_t end; (end = help.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 100U) << help.substr(begin, end - begin);
  }
}

TEST(OptionTable, ALaterOptionTakesThePlaceOfAnExplanation) {
  Program program;
  std::string resume;
  program.table.add("--resume", "checkpoint.load_path", resume, "folder");
  EXPECT_TRUE(program.table.parse({"--resume", "here"}));
  EXPECT_EQ(resume, "here");
}

TEST(OptionTable, TwoOptionsWithOneNameAreAMistakeInTheProgram) {
  Program program;
  Index other = 0;
  EXPECT_THROW(program.table.add("--steps", "x.y", other, ""), Error);
  EXPECT_THROW(program.table.add("--other", "training.seed", other, ""), Error);
}

TEST(OptionTable, PlantedFaultIsSeen) {
  // Were the file applied after the flags, FlagsBeatTheFileWhereverTheyStand would have to notice: the same two
  // sources in the wrong order give another number.
  Program program;
  program.table.parse({"--steps", "9"});
  program.table.parse(
      {"--config", program.folder.write("run.json", R"({"training": {"total_train_steps": 5}})")});
  EXPECT_NE(program.steps, 9);
}

}  // namespace
}  // namespace escalera
