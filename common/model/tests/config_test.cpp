// Model configurations: presets, files, and what is refused.
#include "common/model/config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/refusal.h"

namespace escalera {
namespace {

class ConfigTest : public testing::Test {
 protected:
  std::string load_refused(const std::string& text) const {
    const std::string file = folder_.write("config.json", text);
    return refusal([&] { load_model_config(file); });
  }

  const TemporaryDirectory folder_;
};

const std::string sizes =
    R"("vocab_size": 61, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4, "num_attention_heads": 6)";

/// N as the field writes it: (1 tied, 2 untied) v h + L (3 h f + (2 + 2 k/a) h^2 + 2 h) + h. Independent of
/// formulas.cpp, which counts matrix by matrix.
double published_count(const ModelConfig& m) {
  const auto h = static_cast<double>(m.hidden_size), f = static_cast<double>(m.intermediate_size);
  const auto share = static_cast<double>(m.num_key_value_heads) / static_cast<double>(m.num_attention_heads);
  const double block = 3 * h * f + (2 + 2 * share) * h * h + 2 * h;
  return (m.tie_word_embeddings ? 1 : 2) * static_cast<double>(m.vocab_size) * h +
         static_cast<double>(m.num_hidden_layers) * block + h;
}

TEST(Presets, HaveThePublishedParameterCounts) {
  // The first group is known to the last parameter; the benchmark models are named by their rounded counts.
  EXPECT_EQ(published_count(load_model_config("SmolLM-135M")), 134515008);
  EXPECT_EQ(published_count(load_model_config("SmolLM-1.7B")), 1711376384);
  EXPECT_EQ(published_count(load_model_config("Llama-3-8B")), 8030261248);
  EXPECT_EQ(published_count(load_model_config("Llama-3-70B")), 70553706496);
  EXPECT_NEAR(published_count(load_model_config("playbook-1.34b")) / 1e9, 1.34, 0.005);
  EXPECT_NEAR(published_count(load_model_config("playbook-3.57b")) / 1e9, 3.57, 0.005);
  EXPECT_NEAR(published_count(load_model_config("playbook-8.86b")) / 1e9, 8.86, 0.005);
  EXPECT_NEAR(published_count(load_model_config("playbook-80b")) / 1e9, 80.0, 0.5);
}

TEST(Presets, TheCheckSeesAWrongModel) {
  // Planted fault: half a dozen more layers, or an untied table, would not pass for the published model.
  ModelConfig model = load_model_config("playbook-1.34b");
  model.num_hidden_layers += 1;
  EXPECT_GT(std::abs(published_count(model) / 1e9 - 1.34), 0.005);
  model = load_model_config("playbook-1.34b");
  model.tie_word_embeddings = false;
  EXPECT_GT(std::abs(published_count(model) / 1e9 - 1.34), 0.005);
}

TEST(Presets, AreFoundByAnySpellingOfTheirName) {
  EXPECT_EQ(load_model_config("tiny").hidden_size, 128);
  EXPECT_EQ(load_model_config("small").intermediate_size, 688);
  EXPECT_EQ(load_model_config("HuggingFaceTB/SmolLM-135M").num_key_value_heads, 3);
  EXPECT_EQ(load_model_config("meta-llama/Meta-Llama-3-8B").rope_theta, 500000.0);
  EXPECT_EQ(load_model_config("LLAMA-3-8B").vocab_size, 128256);
}

TEST(Presets, UnknownNamesAreRefusedWithTheNearest) {
  EXPECT_TRUE(
      mentions(refusal([] { load_model_config("tinny"); }), {"tinny", "did you mean tiny?", "smollm-135m"}));
  EXPECT_TRUE(mentions(refusal([] { load_model_config("no/such/config.json"); }), {"no such file"}));
}

TEST_F(ConfigTest, TheConfigsFolderCanBeMoved) {
  std::filesystem::create_directory(folder_ / "models");
  folder_.write("models/mine.json", "{" + sizes + "}");
  setenv("ESCALERA_CONFIGS", folder_.path().c_str(), 1);
  EXPECT_EQ(load_model_config("mine").vocab_size, 61);
  EXPECT_TRUE(mentions(refusal([] { load_model_config("tiny"); }), {"presets are mine"}));
  unsetenv("ESCALERA_CONFIGS");
}

TEST_F(ConfigTest, FilesAndFoldersAreRead) {
  const std::string file =
      folder_.write("config.json", "{" + sizes + R"(, "num_key_value_heads": 2, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "rope_scaling": null, "rope_parameters": {"rope_type": "default", "rope_theta": 5000}})");
  for (const std::string& path : {file, folder_.path()}) {
    const ModelConfig config = load_model_config(path);
    EXPECT_EQ(config.vocab_size, 61);
    EXPECT_EQ(config.num_key_value_heads, 2);
    EXPECT_EQ(config.head_size(), 8);
    EXPECT_TRUE(config.tie_word_embeddings);
    EXPECT_EQ(config.rope_theta, 5000.0);
  }
}

TEST_F(ConfigTest, MissingKeysFallBackAsInTransformers) {
  const ModelConfig config = load_model_config(folder_.write("config.json", "{" + sizes + "}"));
  EXPECT_EQ(config.num_key_value_heads, 6);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_FALSE(config.tie_word_embeddings);
}

TEST_F(ConfigTest, WhatIsWrittenIsReadBackTheSame) {
  ModelConfig config = load_model_config("smollm-135m");
  config.rope_theta = 12345.5;
  config.rms_norm_eps = 3e-6;
  const std::string text = to_json(config, DType::bfloat16);
  const ModelConfig again = load_model_config(folder_.write("config.json", text));
  EXPECT_EQ(to_json(again, DType::bfloat16), text);
  EXPECT_EQ(again.rope_theta, 12345.5);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["architectures"], nlohmann::json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(json["model_type"], "llama");
  EXPECT_EQ(json["torch_dtype"], "bfloat16");
  EXPECT_TRUE(json["eos_token_id"].is_null());
}

TEST_F(ConfigTest, SlipsAreRefusedWithTheirPlace) {
  EXPECT_TRUE(mentions(load_refused("{" + sizes + R"(, "tie_word_embedings": true})"),
                       {"config.json", "tie_word_embedings", "tie_word_embeddings?"}));
  EXPECT_TRUE(mentions(load_refused("{" + sizes + R"(, "head_dim": "8"})"), {"head_dim", "\"8\""}));
  EXPECT_TRUE(
      mentions(load_refused("{" + sizes + R"(, "rope_theta": true})"), {"rope_theta must be a number"}));
  EXPECT_TRUE(mentions(load_refused("{" + sizes + R"(, "vocab_size": 62})"), {"vocab_size appears twice"}));
  EXPECT_TRUE(mentions(load_refused("{\n  \"vocab_size\": ,\n}"), {"line 2, column 17"}));
  EXPECT_TRUE(mentions(load_refused("[]"), {"object"}));
  EXPECT_TRUE(mentions(load_refused(""), {"not valid JSON"}));
  EXPECT_TRUE(mentions(load_refused("{}"), {"the key vocab_size is missing"}));
}

TEST_F(ConfigTest, OtherModelsAreRefused) {
  EXPECT_TRUE(mentions(load_refused("{" + sizes + R"(, "model_type": "gpt2"})"), {"gpt2"}));
  EXPECT_TRUE(
      mentions(load_refused("{" + sizes + R"(, "architectures": ["MistralForCausalLM"]})"), {"Mistral"}));
  EXPECT_TRUE(mentions(load_refused("{" + sizes + R"(, "attention_bias": true})"), {"attention_bias"}));
  EXPECT_TRUE(mentions(load_refused("{" + sizes + R"(, "mlp_bias": true})"), {"mlp_bias"}));
  EXPECT_TRUE(mentions(load_refused("{" + sizes + R"(, "hidden_act": "gelu"})"), {"gelu"}));
  EXPECT_TRUE(mentions(load_refused("{" + sizes + R"(, "sliding_window": 4096})"), {"sliding_window"}));
  EXPECT_TRUE(
      mentions(load_refused("{" + sizes + R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}})"),
               {"rope_scaling", "llama3"}));
}

TEST(Validation, NamesOptionsNumbersAndAValueThatWorks) {
  ModelConfig config;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 3;
  EXPECT_TRUE(mentions(refusal([&] { config.validate(); }),
                       {"--num-attention-heads 8", "--num-key-value-heads 3", "2 key/value"}));

  config = {};
  config.hidden_size = 100;
  EXPECT_TRUE(
      mentions(refusal([&] { config.validate(); }), {"--hidden-size 100", "heads 8", "112 would work"}));

  config = {};
  config.hidden_size = 72;  // heads of 9
  EXPECT_TRUE(mentions(refusal([&] { config.validate(); }), {"head size is 9", "--head-dim 10"}));
  config.head_dim = 10;
  EXPECT_EQ(refusal([&] { config.validate(); }), "");

  config = {};
  config.num_hidden_layers = 0;
  EXPECT_TRUE(mentions(refusal([&] { config.validate(); }), {"--num-hidden-layers"}));
  config = {};
  config.rms_norm_eps = 0;
  EXPECT_TRUE(mentions(refusal([&] { config.validate(); }), {"--rms-norm-eps"}));
}

}  // namespace
}  // namespace escalera
