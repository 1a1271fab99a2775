// C24: a run whose numbers have gone wrong ends, says where it began, and writes none of them.
#include <limits>
#include <regex>

#include "common/checkpoint/safetensors.h"
#include "tests/support/program_run.h"

namespace escalera {
namespace {

class NotFinite : public testing::Test {
 protected:
  /// A text of four sequences, of which one has a 'Z': each of four ranks gets one of them in every step.
  static std::string text_with_a_rare_byte() {
    std::string text = repetitive_text(4 * 24 + 1);
    text[30] = 'Z';
    return text;
  }

  /// Replaces one element in the exported folder "model" of this test.
  void plant(const std::string& tensor, std::size_t element, double value) const {
    const std::string file = folder_ / "model/model.safetensors", copy = folder_ / "copy.safetensors";
    {
      const SafetensorsReader reader(file);
      std::vector<TensorInfo> infos;
      for (const auto& [name, info] : reader.tensors()) infos.push_back(info);
      SafetensorsWriter writer(copy, infos, reader.metadata());
      for (const TensorInfo& info : infos) {
        std::vector<double> values = reader.values(info.name);
        if (info.name == tensor) values.at(element) = value;
        writer.write_values(info.name, values);
      }
      writer.finish();
    }
    std::filesystem::rename(copy, file);
  }

  TemporaryDirectory folder_;
  std::string text_ = folder_.write("text.txt", text_with_a_rare_byte());
  Words common_ = small_model(text_) + Words{"--micro-batch-size", "1", "--steps", "3"};
};

// The embedding of a byte that only one rank reads: that rank, and no other, has a loss that is no number.
TEST_F(NotFinite, OneRankIsNamedWithTheStepAndNothingIsExported) {
  run_well(on_threads(1) + common_ + Words{"--export", folder_ / "model"});
  plant("model.embed_tokens.weight", 'Z' * 48 + 5, std::numeric_limits<double>::quiet_NaN());
  std::vector<Words> starts = {on_threads(4)};
  if (has_mpi()) starts.push_back(on_mpi(4));
  std::string speaker;
  for (const Words& start : starts) {
    const ProcessResult result =
        run_process(start + common_ + Words{"--init-from", folder_ / "model", "--export", folder_ / "bad"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "bad"));
    std::smatch match;
    ASSERT_TRUE(std::regex_search(result.err, match,
                                  std::regex("step 1: the loss is -?nan; it began on rank ([0-3])")))
        << result.err;
    EXPECT_TRUE(mentions(result.err, {fmt::format("rank {}", match[1].str())}));
    EXPECT_EQ(occurrences(result.err, "the loss is"), 1) << result.err;
    EXPECT_TRUE(speaker.empty() || speaker == match[1]) << "threads and processes name different ranks";
    speaker = match[1];
    EXPECT_EQ(occurrences(result.out, "\nstep "), 0) << "a step without a loss was counted as done";
  }
}

TEST_F(NotFinite, InfiniteWeightsOnAllRanks) {
  run_well(on_threads(1) + common_ + Words{"--export", folder_ / "model"});
  plant("lm_head.weight", 7, std::numeric_limits<double>::infinity());
  const ProcessResult result = run_process(on_threads(4) + common_ + Words{"--init-from", folder_ / "model"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(mentions(result.err, {"step 1", "all 4 ranks"}));
}

TEST_F(NotFinite, AnAbsurdLearningRateEndsTheRunAndKeepsTheOldExport) {
  run_well(on_threads(2) + common_ + Words{"--export", folder_ / "model"});
  const std::string weights = folder_.read("model/model.safetensors");
  for (const char* dtype : {"float32", "bfloat16"}) {
    const ProcessResult result = run_process(on_threads(2) + common_ +
                                             Words{"--optimizer", "sgd", "--learning-rate", "1e38", "--clip",
                                                   "0", "--dtype", dtype, "--export", folder_ / "model"});
    EXPECT_EQ(result.exit_code, 1) << dtype;
    EXPECT_TRUE(mentions(result.err, {"step 2"})) << dtype;
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
    EXPECT_EQ(occurrences(result.out, "\nstep 1 |"), 1) << "the step that was still good is missing";
    EXPECT_TRUE(folder_.read("model/model.safetensors") == weights) << dtype;
  }
}

}  // namespace
}  // namespace escalera
