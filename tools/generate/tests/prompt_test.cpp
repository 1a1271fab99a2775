// Prompts and lengths: what is accepted, and what the messages say.
#include "tools/generate/prompt.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace escalera {
namespace {

using Ids = std::vector<std::int32_t>;

bool refused(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (message.find(part) == std::string::npos) return false;
  }
  return true;
}

TEST(Prompt, BytesAreTokensAndAnEmptyPromptIsANewline) {
  EXPECT_EQ(read_prompt("Hi\xff", "", 256), (Ids{'H', 'i', 255}));
  EXPECT_EQ(read_prompt("", "", 256), (Ids{'\n'}));
}

TEST(Prompt, TokenListsAreReadForAnyVocabulary) {
  EXPECT_EQ(read_prompt("", "1,20,49151", 49152), (Ids{1, 20, 49151}));
  EXPECT_EQ(read_prompt("", "7", 256), (Ids{7}));
}

TEST(Prompt, WrongTokenListsAreRefused) {
  for (const char* list : {"1,,2", "1,2,", "a", "1 2", "1.5", ","}) {
    EXPECT_TRUE(
        refused(message_of<UsageError>([&] { parse_token_list(list, 10); }), {"--prompt-tokens", "1,2,3"}))
        << list;
  }
  for (const char* list : {"10", "-1", "99999999999999999999"}) {
    EXPECT_TRUE(refused(message_of<UsageError>([&] { parse_token_list(list, 10); }),
                        {"--prompt-tokens", list, "0 to 9"}))
        << list;
  }
}

TEST(Prompt, TextForAModelThatDoesNotReadBytesIsRefused) {
  for (const char* text : {"Hi", ""}) {
    EXPECT_TRUE(
        refused(message_of<UsageError>([&] { read_prompt(text, "", 49152); }), {"49152", "--prompt-tokens"}));
  }
  EXPECT_TRUE(
      refused(message_of<UsageError>([&] { read_prompt("Hi", "1", 256); }), {"--prompt", "--prompt-tokens"}));
}

TEST(Prompt, LengthsThatDoNotFitAreRefusedWithTheNumberThatDoes) {
  EXPECT_EQ(tokens_to_generate({}, 10, 2048), 200);
  EXPECT_EQ(tokens_to_generate({}, 10, 100), 91);
  EXPECT_EQ(tokens_to_generate(91, 10, 100), 91);
  EXPECT_EQ(tokens_to_generate({}, 100, 100), 1);
  EXPECT_TRUE(refused(message_of<UsageError>([&] { tokens_to_generate(92, 10, 100); }),
                      {"--tokens 92", "10", "max_position_embeddings 100", "91 fit"}));
  EXPECT_TRUE(refused(message_of<UsageError>([&] { tokens_to_generate({}, 101, 100); }),
                      {"101", "max_position_embeddings is 100"}));
}

}  // namespace
}  // namespace escalera
