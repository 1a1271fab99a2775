// safetensors: what is written comes back bit for bit, and no damaged file is believed.
#include "common/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_directory.h"

namespace escalera {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// A file of the given header and `data_bytes` bytes of data, the n-th being n.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  file += header;
  for (std::size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

class SafetensorsTest : public ::testing::Test {
 protected:
  /// Why the file is refused; "" if it is not.
  std::string refusal(const std::string& contents) {
    const std::string path = directory_.write("file.safetensors", contents);
    const std::string message = message_of<UsageError>([&] { SafetensorsReader(path, "--init-from"); });
    if (!message.empty()) {
      EXPECT_TRUE(message.starts_with("--init-from " + path + ": ")) << message;
    }
    return message;
  }
  TemporaryDirectory directory_;
  const std::string path_ = directory_ / "out.safetensors";
};

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(SafetensorsTest, WhatIsWrittenComesBack) {
  const std::vector<double> matrix = {1, -2.5, 0x1.8p-20, 1e30, 0, -0.0}, wide = {0.1, -infinity, 1e300};
  SafetensorsWriter writer(path_,
                           {{"b", DType::bfloat16, {4}},
                            {"f.weight", DType::float32, {2, 3}},
                            {"d", DType::float64, {3, 1}},
                            {"scalar", DType::float32, {}},
                            {"none", DType::bfloat16, {0, 7}}},
                           {{"step", "12"}});
  writer.write_values("d", wide);
  writer.write_values("none", {});
  writer.write_values("scalar", std::vector<double>{7});
  writer.write_values("f.weight", matrix);
  writer.write_values("b", std::vector<double>{1, 1.00390625, 1.005859375, -3});
  EXPECT_FALSE(std::filesystem::exists(path_));
  writer.finish();

  const SafetensorsReader reader(path_);
  EXPECT_EQ(reader.tensors().size(), 5U);
  EXPECT_EQ(reader.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"step", "12"}}));
  EXPECT_EQ(reader.info("f.weight").shape, (std::vector<Index>{2, 3}));
  EXPECT_EQ(reader.info("f.weight").dtype, DType::float32);
  EXPECT_EQ(reader.info("scalar").elements(), 1);
  EXPECT_EQ(reader.values("d"), wide);
  EXPECT_EQ(reader.values("scalar"), std::vector<double>{7});
  EXPECT_EQ(reader.values("none"), std::vector<double>{});
  const auto back = reader.values("f.weight");
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint64_t>(back[i]), std::bit_cast<std::uint64_t>(double(float(matrix[i]))))
        << i;
  }
  // 1 + 2^-8 lies between two bfloat16 numbers and is rounded to the even one; 1 + 3 * 2^-9 is rounded up.
  EXPECT_EQ(reader.values("b"), (std::vector<double>{1, 1, 1.0078125, -3}));
  EXPECT_EQ(reader.values("f.weight", 1, 2), (std::vector<double>{-2.5, 0x1.8p-20}));
  EXPECT_EQ(reader.values("f.weight", 6), std::vector<double>{});
  EXPECT_CONTAINS(message_of([&] { reader.values("f.weight", 5, 2); }), "elements 5 to 7");
  EXPECT_CONTAINS(message_of([&] { reader.info("g"); }), "no tensor g");
  for (const auto& [name, info] : reader.tensors()) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(reader.bytes(name).data()) %
                  static_cast<std::size_t>(size_of(info.dtype)),
              0U)
        << name << " is not aligned to its elements";
  }
}

// The fault that those numbers are there to show, planted: bfloat16 made by cutting a float32 in half.
TEST_F(SafetensorsTest, TheNumbersShowTruncation) {
  const std::vector<double> values = {1, 1.00390625, 1.005859375, -3};
  const auto whole = encode_values(values, DType::float32);
  std::vector<std::byte> upper;
  for (std::size_t i = 0; i < whole.size(); i += 4) upper.insert(upper.end(), {whole[i + 2], whole[i + 3]});
  EXPECT_NE(upper, encode_values(values, DType::bfloat16));
}

// The format, byte by byte, and not only what our own reader makes of it.
TEST_F(SafetensorsTest, TheFileIsLaidOutAsTheFormatSays) {
  SafetensorsWriter writer(path_, {{"a", DType::bfloat16, {1}}, {"z", DType::float32, {1, 2}}});
  writer.write_values("a", std::vector<double>{1});
  writer.write_values("z", std::vector<double>{1, 2});
  writer.finish();
  const std::string file = directory_.read("out.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  EXPECT_EQ(length % 8, 0U);
  ASSERT_EQ(file.size(), 8 + length + 10);
  EXPECT_EQ(file[8], '{');
  const auto header = nlohmann::json::parse(file.substr(8, length));
  EXPECT_EQ(header, nlohmann::json::parse(R"({"__metadata__": {"format": "pt"},
                      "z": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
                      "a": {"dtype": "BF16", "shape": [1], "data_offsets": [8, 10]}})"));
  EXPECT_EQ(file.substr(8 + length), std::string("\x00\x00\x80\x3f\x00\x00\x00\x40\x80\x3f", 10));
}

TEST_F(SafetensorsTest, ReadsUnalignedFilesAndLetsOtherTypesLie) {
  const std::string header =
      R"({"odd":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"x":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}} )";
  const SafetensorsReader reader(directory_.write("file", file_of(header, 11)));
  EXPECT_EQ(reader.tensors().size(), 1U);
  EXPECT_FALSE(reader.contains("odd"));
  EXPECT_CONTAINS(message_of([&] { reader.info("odd"); }), "type U8");
  EXPECT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(reader.values("x")[1])), 0x0a090807U);
}

TEST_F(SafetensorsTest, RefusesDamagedFilesAndSaysWhy) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string good = "{" + a + "}";
  EXPECT_EQ(refusal(file_of(good, 8)), "");
  EXPECT_EQ(refusal(file_of("{}", 0)), "");
  EXPECT_CONTAINS(refusal(""), "0 bytes are too few");
  EXPECT_CONTAINS(refusal("abc"), "3 bytes are too few");
  EXPECT_CONTAINS(refusal("a text file, not a safetensors one"), "no safetensors file");
  EXPECT_CONTAINS(refusal(file_of(good, 8).substr(0, 40)), "cut off");
  EXPECT_CONTAINS(refusal(file_of(good, 7)), "the file has only 7");
  EXPECT_CONTAINS(refusal(file_of(good, 9)), "describes 8 bytes of data, but the file has 9");
  EXPECT_CONTAINS(refusal(file_of("[]", 0)), "does not begin with {");
  EXPECT_CONTAINS(refusal(file_of("{" + a, 8)), "not JSON");
  EXPECT_CONTAINS(refusal(file_of("{" + a + "}}", 8)), "not JSON");
  EXPECT_CONTAINS(refusal(file_of("{" + a + "," + a + "}", 8)), "names a twice");
  EXPECT_CONTAINS(refusal(file_of("{\"\xff\":1}", 8)), "not JSON");
}

TEST_F(SafetensorsTest, RefusesEntriesThatContradictThemselves) {
  const auto entry = [&](const std::string& fields, std::size_t data_bytes) {
    return refusal(file_of("{\"a\":" + fields + "}", data_bytes));
  };
  EXPECT_CONTAINS(entry("3", 0), "tensor a: has no dtype");
  EXPECT_CONTAINS(entry(R"({"dtype":"F32","shape":[2]})", 8), "has no data_offsets");
  EXPECT_CONTAINS(entry(R"({"dtype":3,"shape":[2],"data_offsets":[0,8]})", 8), "dtype is not a name");
  EXPECT_CONTAINS(entry(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})", 8), "unknown dtype F33");
  EXPECT_CONTAINS(entry(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", 8), "shape is not a list");
  EXPECT_CONTAINS(entry(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", 8), "-2 is not a size");
  EXPECT_CONTAINS(entry(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", 8), "2.0 is not a size");
  EXPECT_CONTAINS(entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", 8), "take 12 bytes");
  EXPECT_CONTAINS(entry(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0),
                  "too large");
  EXPECT_CONTAINS(entry(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})", 8),
                  "not a size");
  EXPECT_CONTAINS(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8), "backwards");
  EXPECT_CONTAINS(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,16]})", 16), "not a pair");
  EXPECT_CONTAINS(refusal(file_of(R"({"__metadata__":{"a":3}})", 0)), "not a string");
}

TEST_F(SafetensorsTest, RefusesOverlapsAndHoles) {
  const auto pair = [&](const std::string& second, std::size_t data_bytes) {
    return refusal(file_of(
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":)" +
            second + "}}",
        data_bytes));
  };
  EXPECT_EQ(pair("[8,16]", 16), "");
  EXPECT_CONTAINS(pair("[4,12]", 12), "tensor b overlaps");
  EXPECT_CONTAINS(pair("[0,8]", 8), "overlaps");
  EXPECT_CONTAINS(pair("[12,20]", 20), "bytes 8 to 12 of the data belong to no tensor");
}

// Each byte of the header in turn is damaged: the reader may find the file still valid, but must neither crash nor throw
// anything but its refusal.
TEST_F(SafetensorsTest, SurvivesAnyDamagedByteOfTheHeader) {
  const std::string good = file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  int refused = 0;
  for (std::size_t i = 0; i < good.size() - 8; ++i) {
    for (const char damage : {'\x01', '\x80', '\x20'}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ damage);
      refused += !refusal(bad).empty();
    }
  }
  EXPECT_GT(refused, 100);
}

TEST_F(SafetensorsTest, TheWriterRefusesMistakesAndLeavesNothing) {
  const auto writer_of = [&](std::vector<TensorInfo> tensors) {
    return SafetensorsWriter(path_, std::move(tensors));
  };
  EXPECT_CONTAINS(message_of([&] {
                    writer_of({{"a", DType::float32, {1}}, {"a", DType::float64, {1}}});
                  }),
                  "declared twice");
  EXPECT_CONTAINS(message_of([&] { writer_of({{"__metadata__", DType::float32, {1}}}); }), "__metadata__");
  EXPECT_CONTAINS(message_of([&] { writer_of({{"\xff", DType::float32, {1}}}); }), path_);
  EXPECT_CONTAINS(message_of([&] { writer_of({{"a", DType::float32, {-1, -4}}}); }), "negative");
  {
    SafetensorsWriter writer(path_, {{"a", DType::float32, {2}}, {"b", DType::float32, {1}}});
    writer.write_values("a", std::vector<double>{1, 2});
    EXPECT_CONTAINS(message_of([&] {
                      writer.write_values("a", std::vector<double>{1, 2});
                    }),
                    "written twice");
    EXPECT_CONTAINS(message_of([&] { writer.write_values("c", std::vector<double>{1}); }), "not declared");
    EXPECT_CONTAINS(message_of([&] {
                      writer.write_values("b", std::vector<double>{1, 2});
                    }),
                    "8 bytes for tensor b");
    EXPECT_CONTAINS(message_of([&] { writer.finish(); }), "tensor b was declared but not written");
  }
  EXPECT_EQ(directory_.count(), 0);
  EXPECT_CONTAINS(message_of([&] { SafetensorsWriter(directory_ / "no/such/file", {}); }),
                  directory_ / "no/such/file");
}

}  // namespace
}  // namespace escalera
