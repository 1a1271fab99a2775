#include "tests/support/compared_runs.h"

namespace escalera {

Words ComparedRuns::two_steps(const std::string& name, const std::string& global_batch, const std::string& clip) const {
  return {"--dtype",          "float64", "--optimizer",         "sgd",
          "--learning-rate",  "0.5",     "--clip",              clip,
          "--steps",          "2",       "--global-batch-size", global_batch,
          "--dump-gradients", folder_ / (name + ".gradients"),
          "--export",         folder_ / name,
          "--metrics",        folder_ / (name + ".jsonl")};
}

void ComparedRuns::expect_same_numbers(const std::string& name, const std::string& reference) const {
  for (const char* file : {".gradients", "/model.safetensors"}) {
    for (const auto& [tensor, error] : tensor_errors(folder_ / (name + file), folder_ / (reference + file))) {
      // float64 sums in another order: expect 1e-14. Averages instead of sums, or a part left out, are off by 1e-2 or more.
      EXPECT_LE(error, 1e-10) << tensor << " in " << name << file;
    }
  }
  const auto ours = metrics_of(folder_ / (name + ".jsonl")), theirs = metrics_of(folder_ / (reference + ".jsonl"));
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); i++) {
    for (const char* key : {"loss", "grad_norm", "validation_loss"}) {
      ASSERT_EQ(ours[i].contains(key), theirs[i].contains(key)) << key;
      if (!ours[i].contains(key)) continue;
      const double expected = theirs[i].at(key).get<double>();
      EXPECT_NEAR(ours[i].at(key).get<double>(), expected, 1e-10 * expected) << key;
    }
  }
}

void ComparedRuns::expect_same_bits(const std::string& name, const std::string& reference) const {
  for (const char* file : {".gradients", "/model.safetensors"}) {
    EXPECT_TRUE(folder_.read(name + file) == folder_.read(reference + file)) << name << " and " << reference << file;
  }
  EXPECT_EQ(losses_of(folder_ / (name + ".jsonl")), losses_of(folder_ / (reference + ".jsonl")));
}

void ComparedRuns::expect_clipped(const std::string& name, double clip) const {
  for (const auto& line : metrics_of(folder_ / (name + ".jsonl"))) {
    if (line.contains("grad_norm")) {
      ASSERT_GT(line.at("grad_norm").get<double>(), clip) << "the clip is not active: nothing is proved about it";
    }
  }
}

}  // namespace escalera
