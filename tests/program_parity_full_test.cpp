// The large matrix of program_parity_test.cpp: every mode, accumulation, recomputation and head, on up to 8 ranks.
#include "tests/support/program_run.h"

namespace escalera {
namespace {

using Layout = std::tuple<int, std::string, std::string, bool>;
class ProgramMatrix : public testing::TestWithParam<Layout> {};

std::string name_of(const testing::TestParamInfo<Layout>& test) {
  const auto& [ranks, mode, recompute, tied] = test.param;
  return fmt::format("dp{}_{}_{}_{}", ranks, mode, recompute, tied ? "tied" : "untied");
}
INSTANTIATE_TEST_SUITE_P(Layouts, ProgramMatrix,
                         testing::Combine(testing::Values(1, 2, 4, 8),
                                          testing::Values("naive", "bucketed", "overlapped"),
                                          testing::Values("none", "selective", "full"), testing::Bool()),
                         name_of);

TEST_P(ProgramMatrix, GivesTheGradientsAndWeightsOfOneRank) {
  const auto& [ranks, mode, recompute, tied] = GetParam();
  const TemporaryDirectory folder;
  const std::string text = folder.write("text.txt", repetitive_text(5000));
  const auto run = [&, tied = tied](const std::string& name, int count, const Words& more) {
    run_well(on_threads(count) + small_model(text) +
             Words{"--dtype", "float64", "--optimizer", "sgd", "--learning-rate", "0.5", "--clip", "0.25",
                   "--steps", "2", "--global-batch-size", "32", "--tie-word-embeddings",
                   tied ? "true" : "false", "--dump-gradients", folder / (name + ".gradients"), "--export",
                   folder / name} +
             more);
  };
  run("one", 1, {"--micro-batch-size", "32"});
  for (const char* accumulation : {"1", "2", "4"}) {
    for (const char* bucket : {"0", "0.1", "1000"}) {
      run("many", ranks,
          {"--dp-mode", mode, "--recompute", recompute, "--gradient-accumulation-steps", accumulation,
           "--bucket-mb", bucket});
      for (const char* file : {".gradients", "/model.safetensors"}) {
        for (const auto& [name, error] :
             tensor_errors(folder / (std::string("many") + file), folder / (std::string("one") + file))) {
          EXPECT_LE(error, 1e-10) << name << file << ", accumulation " << accumulation << ", bucket "
                                  << bucket;
        }
      }
    }
  }
}

}  // namespace
}  // namespace escalera
