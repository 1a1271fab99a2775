// The program learns what is in its text, and reads that text byte for byte.
#include <cmath>

#include "common/checkpoint/safetensors.h"
#include "tests/support/program_run.h"

namespace escalera {
namespace {

class Learning : public testing::Test {
 protected:
  TemporaryDirectory folder_;
};

TEST_F(Learning, SixtyStepsLearnARepetitiveTextInEitherType) {
  const std::string text = folder_.write("text.txt", repetitive_text(40'000));
  const auto run = [&](const std::string& dtype) {
    run_well(on_threads(2) + Words{"--model",
                                   "tiny",
                                   "--data",
                                   text,
                                   "--seq-length",
                                   "64",
                                   "--micro-batch-size",
                                   "4",
                                   "--steps",
                                   "60",
                                   "--warmup-steps",
                                   "5",
                                   "--learning-rate",
                                   "1.5e-3",
                                   "--dtype",
                                   dtype,
                                   "--metrics",
                                   folder_ / (dtype + ".jsonl"),
                                   "--export",
                                   folder_ / dtype});
    return losses_of(folder_ / (dtype + ".jsonl"));
  };
  const std::vector<double> wide = run("float32"), narrow = run("bfloat16");
  ASSERT_EQ(wide.size(), 60U);
  ASSERT_EQ(narrow.size(), 60U);
  EXPECT_NEAR(wide.front(), std::log(256), 0.2)
      << "before it has learnt anything, all bytes are equally likely";
  // The bytes alone, without order, have an entropy of about 2.9; below 0.7, words are known by heart.
  EXPECT_LT(wide.back(), 0.7);
  // C23: bfloat16 has float32 masters and goes the same way. Steep parts of the curve are a step apart at most.
  for (std::size_t i = 0; i < wide.size(); i++) EXPECT_NEAR(narrow[i], wide[i], 0.15) << "step " << i + 1;
  EXPECT_NEAR(narrow.back(), wide.back(), 0.05);

  // bfloat16 has steps of 2^-8 just below 1. Without float32 masters an update of 1.5e-3 would be less than half a step and
  // norm weights would stay 1 for ever.
  const SafetensorsReader exact(folder_ / "float32/model.safetensors"),
      rounded(folder_ / "bfloat16/model.safetensors");
  for (const char* name : {"model.norm.weight", "model.layers.0.input_layernorm.weight"}) {
    const std::vector<double> ours = rounded.values(name), theirs = exact.values(name);
    double moved = 0, moved_exactly = 0;
    for (std::size_t i = 0; i < ours.size(); i++) {
      moved += std::abs(ours[i] - 1);
      moved_exactly += std::abs(theirs[i] - 1);
      // Half a step of 2^-7 above 1, and what the two runs differ by.
      EXPECT_NEAR(ours[i], theirs[i], 0.012) << name << " " << i;
    }
    EXPECT_NEAR(moved / moved_exactly, 1, 0.2)
        << name << ", mean " << moved_exactly / static_cast<double>(ours.size());
  }
}

// C27. Bytes are tokens: as text, under any locale, and as 16- and 32-bit numbers, a file gives the same losses.
TEST_F(Learning, BytesAreTakenAsTheyAre) {
  std::string bytes =
      "\xEF\xBB\xBF"
      "Stairs \xF0\x9F\xAA\x9C up,\r\nstairs down \xC3\xB1\r\n\xFF\xFE and \x01\x1A\x7F on\n";
  while (bytes.size() < 500) bytes += bytes;
  bytes += "no newline at the end";
  std::vector<std::uint32_t> tokens;
  for (const char byte : bytes) tokens.push_back(static_cast<unsigned char>(byte));
  const auto losses = [&](const std::string& file, const char* width, const std::string& locale) {
    ProcessOptions options;
    options.environment = {{"LC_ALL", locale}};
    run_well(on_threads(2) + small_model(file) +
                 Words{"--token-width", width, "--steps", "3", "--metrics", folder_ / "metrics.jsonl"},
             options);
    return losses_of(folder_ / "metrics.jsonl");
  };
  const std::string text = folder_.write("text.txt", bytes);
  const std::vector<double> expected = losses(text, "0", "C.UTF-8");
  ASSERT_EQ(expected.size(), 3U);
  EXPECT_EQ(losses(text, "0", "C"), expected);
  EXPECT_EQ(losses(text, "8", "C"), expected);
  EXPECT_EQ(losses(folder_.write("tokens.bin", raw_tokens(tokens, 16)), "16", "C"), expected);
  EXPECT_EQ(losses(folder_.write("tokens.bin", raw_tokens(tokens, 32)), "32", "C"), expected);
  // A single bit is another text, so equal losses above mean equal bytes.
  tokens[200] ^= 1;
  EXPECT_NE(losses(folder_.write("tokens.bin", raw_tokens(tokens, 16)), "16", "C"), expected);
}

// C25: ids that do not fit into 16 bits.
TEST_F(Learning, LargeIdsNeedWideTokens) {
  std::vector<std::uint32_t> tokens;
  for (std::uint32_t i = 0; i < 1000; i++) tokens.push_back(65'536 + i % 7);
  const std::string file = folder_.write("tokens.bin", raw_tokens(tokens, 32));
  run_well(on_threads(2) + small_model(file) +
           Words{"--token-width", "32", "--vocab-size", "65600", "--steps", "1", "--micro-batch-size", "1"});
}

}  // namespace
}  // namespace escalera
