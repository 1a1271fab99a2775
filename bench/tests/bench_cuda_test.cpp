// bench_cuda with --quick, on a GPU or a simulated one: every operation runs, and the results can be read by a script.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/floors.h"
#include "common/cuda/cuda_backend.h"
#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"

namespace escalera::bench {
namespace {

using Json = nlohmann::json;

class cuda_Bench : public testing::Test {
 protected:
  void SetUp() override {
    if (!find_cuda().backend) GTEST_SKIP() << find_cuda().missing;
  }

  Json run(const std::vector<std::string>& options) {
    const std::string file = folder_ / "results.json";
    std::vector<std::string> command = {ESCALERA_PROGRAM_FOLDER "/bench_cuda", "--quick", "--json", file};
    command.insert(command.end(), options.begin(), options.end());
    const ProcessResult result = run_process(command);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    return Json::parse(std::ifstream(file));
  }

  static std::set<std::string> values(const Json& rows, const char* key) {
    std::set<std::string> all;
    for (const Json& row : rows)
      all.insert(row.at(key).is_string() ? row.at(key).get<std::string>() : row.at(key).dump());
    return all;
  }

  TemporaryDirectory folder_;
};

TEST_F(cuda_Bench, EveryOperationIsMeasured) {
  const Json sections = run({}).at("sections");
  const Json memory = sections.at("memory").at("rows"), gemm = sections.at("gemm").at("rows");
  std::set<std::string> expected;
  for (const Floor& floor : floors) expected.insert(std::string(floor.operation));
  expected.erase("attention_row_dot");  // a part of an operation
  EXPECT_EQ(values(memory, "operation"), expected);
  EXPECT_EQ(values(memory, "dtype"), (std::set<std::string>{"bfloat16", "float32"}));
  EXPECT_EQ(values(gemm, "pass"), (std::set<std::string>{"forward", "input", "weight"}));
  EXPECT_EQ(gemm.size(), 2U * (5 * 3 + 1));
  EXPECT_EQ(sections.at("attention").at("rows").size(), 2U * 2 * 2);
  EXPECT_EQ(values(sections.at("attention").at("rows"), "head_size"), (std::set<std::string>{"128", "64"}));
  for (const Json& row : memory) {
    EXPECT_GT(row.at("bytes").get<double>(), 0) << row;
    EXPECT_GT(row.at("gb_per_s").get<double>(), 0) << row;
    EXPECT_GT(row.at("share_of_copy").get<double>(), 0) << row;
  }
  for (const Json& row : gemm) EXPECT_GT(row.at("tflops").get<double>(), 0) << row;
}

TEST_F(cuda_Bench, OneSectionCanBeRunAlone) {
  const Json sections = run({"--section", "limits"}).at("sections");
  EXPECT_EQ(sections.size(), 1U);
  EXPECT_EQ(values(sections.at("limits").at("rows"), "limit"),
            (std::set<std::string>{"copy", "matrix product bfloat16", "matrix product float32"}));
}

}  // namespace
}  // namespace escalera::bench
