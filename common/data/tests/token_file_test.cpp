// Token files: every format gives the tokens that lie in it, and every way to misread one is refused.
#include "common/data/token_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <clocale>
#include <numeric>

#include "common/data/tokenizer.h"
#include "tests/support/temporary_directory.h"

namespace escalera {
namespace {

using ::testing::Test;

/// The little-endian bytes of numbers of type T.
template <class T>
std::string raw(const std::vector<std::uint32_t>& values) {
  std::string bytes;
  for (const std::uint32_t value : values) {
    const T narrow = static_cast<T>(value);
    bytes.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
  }
  return bytes;
}

std::string header(std::uint32_t magic, std::uint32_t version, std::uint32_t count) {
  std::vector<std::uint32_t> words(256, 0);
  words[0] = magic, words[1] = version, words[2] = count;
  return raw<std::uint32_t>(words);
}

std::vector<std::uint32_t> tokens_of(const TokenFile& file) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.size()));
  file.read(0, ids);
  return {ids.begin(), ids.end()};
}

/// EXPECTs that the message of a UsageError contains all of `parts`.
#define EXPECT_REFUSED(expression, ...)                                                      \
  do {                                                                                       \
    const std::string message = message_of<UsageError>([&] { expression; });                 \
    EXPECT_NE(message, "") << "not refused: " #expression;                                   \
    for (const std::string& part : std::vector<std::string>{__VA_ARGS__})                    \
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message; \
  } while (false)

class TokenFileTest : public Test {
 protected:
  TemporaryDirectory directory_;
};

// C27
TEST_F(TokenFileTest, TextComesBackByteForByteInAnyLocale) {
  const std::string texts[] = {
      "plain", "\xEF\xBB\xBFwith a mark\r\nand \xF0\x9F\xAA\x9C, \xC3\xA4\xE2\x82\xAC, no newline",
      "\r\n\r\r\n\n", "\xFF\xFE\x41\x00", "\x1A\x04 control characters \x7F\x80\xFF"};
  std::setlocale(LC_ALL, "C");
  for (const std::string& text : texts) {
    const TokenFile file(directory_.write("text", text));
    ASSERT_EQ(file.size(), static_cast<Index>(text.size()));
    EXPECT_EQ(file.format(), "text");
    std::vector<std::int32_t> ids(text.size());
    file.read(0, ids);
    EXPECT_EQ(ids, ByteTokenizer::encode(text));
    EXPECT_EQ(ByteTokenizer::decode(ids), text);
  }
}

// The classic fault, planted: ids by way of plain char, which is signed on x86-64. The texts above must show
// it.
TEST_F(TokenFileTest, TheTextsShowSignedBytes) {
  const std::string text = "\xC3\xA4\xE2\x82\xAC";
  const std::vector<signed char> bytes(text.begin(), text.end());
  EXPECT_NE(std::vector<std::int32_t>(bytes.begin(), bytes.end()), ByteTokenizer::encode(text));
}

TEST_F(TokenFileTest, AllByteValuesAreTokensWhenAskedFor) {
  std::string bytes(256, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  const TokenFile file(directory_.write("bytes", bytes), 8);
  ASSERT_EQ(file.size(), 256);
  for (Index i = 0; i < 256; ++i) EXPECT_EQ(file.token(i), i);
  file.validate(256);
}

TEST(ByteTokenizerTest, RefusesIdsThatAreNoBytes) {
  EXPECT_NE(message_of([] { ByteTokenizer::decode(std::vector<std::int32_t>{65, 256}); }), "");
  EXPECT_NE(message_of([] { ByteTokenizer::decode(std::vector<std::int32_t>{-1}); }), "");
}

TEST_F(TokenFileTest, ReadsBothHeaderFormatsOfLlmC) {
  const std::vector<std::uint32_t> gpt2 = {50256, 0, 464, 65535, 7},
                                   llama3 = {128000, 0, 70000, 1, 65536, 2, 3};
  const TokenFile narrow(directory_.write("gpt2.bin", header(20240520, 1, 5) + raw<std::uint16_t>(gpt2)));
  EXPECT_EQ(tokens_of(narrow), gpt2);
  EXPECT_EQ(narrow.token_width(), 16);
  EXPECT_EQ(narrow.format(), "llm.c header, 16-bit tokens");
  const TokenFile wide(directory_.write("llama3.bin", header(20240801, 7, 7) + raw<std::uint32_t>(llama3)),
                       32);
  EXPECT_EQ(tokens_of(wide), llama3);
  EXPECT_EQ(wide.token(0), 128000);
}

TEST_F(TokenFileTest, ReadsRawTokensOfAGivenWidth) {
  const std::vector<std::uint32_t> ids = {1, 0, 300, 65535, 42};
  EXPECT_EQ(tokens_of(TokenFile(directory_.write("raw16", raw<std::uint16_t>(ids)), 16)), ids);
  const TokenFile wide(directory_.write("raw32", raw<std::uint32_t>(ids)), 32);
  EXPECT_EQ(tokens_of(wide), ids);
  std::vector<std::int32_t> part(2);
  wide.read(2, part);
  EXPECT_EQ(part, (std::vector<std::int32_t>{300, 65535}));
  EXPECT_NE(message_of([&] { wide.read(4, part); }), "");
  EXPECT_NE(message_of([&] { wide.token(5); }), "");
  EXPECT_NE(message_of([&] { wide.token(-1); }), "");
}

TEST_F(TokenFileTest, RefusesWhatIsNoReadableFile) {
  EXPECT_REFUSED(TokenFile(directory_ / "missing"), "--data", directory_ / "missing", "No such file");
  EXPECT_REFUSED(TokenFile(directory_.path()), "--data", directory_.path(), "directory");
  EXPECT_REFUSED(TokenFile("/dev/null"), "--data /dev/null", "regular file");
  ASSERT_EQ(::mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  EXPECT_REFUSED(TokenFile(directory_ / "pipe"), "regular file");
  EXPECT_REFUSED(TokenFile(directory_.write("empty", "")), "--data", directory_ / "empty", "empty");
  EXPECT_REFUSED(TokenFile(directory_.write("text", "abcd"), 12), "--token-width 12", "8, 16 or 32");
}

TEST_F(TokenFileTest, RefusesSizesAndHeadersThatContradict) {
  const std::string five = raw<std::uint16_t>({1, 2, 3, 4, 5});
  EXPECT_REFUSED(TokenFile(directory_.write("odd", "abc"), 16), "3 bytes", "--token-width 16");
  EXPECT_REFUSED(TokenFile(directory_.write("odd", "abcdef"), 32), "6 bytes", "--token-width 32");
  EXPECT_REFUSED(TokenFile(directory_.write("short", header(20240520, 1, 6) + five)), "6 tokens", "12 bytes",
                 "10 bytes");
  EXPECT_REFUSED(TokenFile(directory_.write("long", header(20240520, 1, 4) + five)), "4 tokens", "8 bytes",
                 "10 bytes");
  EXPECT_REFUSED(TokenFile(directory_.write("none", header(20240520, 1, 0))), "0 tokens");
  EXPECT_REFUSED(TokenFile(directory_.write("negative", header(20240520, 1, 0xfffffffb) + five)),
                 "-5 tokens");
  EXPECT_REFUSED(TokenFile(directory_.write("version", header(20240520, 7, 5) + five)), "version 7",
                 "version 1");
  EXPECT_REFUSED(TokenFile(directory_.write("cut", header(20240801, 7, 5).substr(0, 1000))), "1000 bytes",
                 "1024");
  EXPECT_REFUSED(TokenFile(directory_.write("width", header(20240520, 1, 5) + five), 32), "16-bit",
                 "--token-width is 32");
  EXPECT_REFUSED(TokenFile(directory_.write("width", header(20240520, 1, 5) + five), 8), "16-bit",
                 "--token-width is 8");
}

// C25: reading with the wrong width is refused.
TEST_F(TokenFileTest, RefusesContentsThatLookLikeAnotherWidth) {
  std::vector<std::uint32_t> ids(500);
  for (std::uint32_t i = 0; i < 500; ++i) ids[i] = i * 7919 % 100003;
  const std::string wide = directory_.write("wide", raw<std::uint32_t>(ids));
  EXPECT_REFUSED((TokenFile(wide)), "byte 0 is 0", "--token-width");
  EXPECT_REFUSED((TokenFile(wide, 16)), "--token-width 32");
  for (std::uint32_t& id : ids) id %= 50257;
  const std::string narrow = directory_.write("narrow", raw<std::uint16_t>(ids));
  EXPECT_REFUSED((TokenFile(narrow)), "byte 0 is 0", "--token-width");
  EXPECT_REFUSED((TokenFile(narrow, 32).validate(50257)), "--token-width");
  TokenFile(narrow, 16).validate(50257);
}

// C25: the message names file, offset, id and vocabulary, wherever the id lies in the blocks of the search.
TEST_F(TokenFileTest, ValidateNamesTheFirstIdOutsideTheVocabulary) {
  for (const std::size_t offset : {0U, 1000U, 16383U, 16384U, 40000U}) {
    std::vector<std::uint32_t> ids(40001, 60);
    ids[offset] = 61;
    ids[40000] = 61;
    const std::string where = "offset " + std::to_string(offset) + " ";
    const auto check = [&](const std::string& contents, int width) {
      const TokenFile file(directory_.write("ids", contents), width);
      file.validate(62);
      EXPECT_REFUSED(file.validate(61), directory_ / "ids", where, "id 61", "vocabulary has 61");
    };
    check(raw<std::uint8_t>(ids), 8);
    check(raw<std::uint16_t>(ids), 16);
    check(raw<std::uint32_t>(ids), 32);
    check(header(20240801, 7, 40001) + raw<std::uint32_t>(ids), 0);
  }
}

TEST_F(TokenFileTest, ValidateKnowsTheEndsOfEachWidth) {
  const TokenFile bytes(directory_.write("bytes", "\xFF\xFE\xFF"));
  bytes.validate(256);
  bytes.validate(50257);
  EXPECT_REFUSED(bytes.validate(255), "offset 0 ", "id 255");
  const TokenFile narrow(directory_.write("narrow", raw<std::uint16_t>({7, 65535})), 16);
  narrow.validate(65536);
  EXPECT_REFUSED(narrow.validate(65535), "offset 1 ", "id 65535");
  const TokenFile wide(directory_.write("wide", raw<std::uint32_t>({7, 0xffffffff})), 32);
  EXPECT_REFUSED(wide.validate(2147483647), "offset 1 ", "id 4294967295");
  EXPECT_REFUSED(wide.validate(0), "--vocab-size 0");
}

}  // namespace
}  // namespace escalera
