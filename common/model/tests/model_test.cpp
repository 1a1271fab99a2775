// The one-process model against a naive model and finite differences: if this is wrong, every layout may agree and all be
// wrong together.
#include <gtest/gtest.h>

#include <cmath>

#include "common/model/model.h"
#include "tests/support/parity.h"

namespace escalera {
namespace {

/// Small enough for a scalar tape; no two dimensions equal.
ModelConfig small_model(bool tied) {
  ModelConfig config;
  config.vocab_size = 13;
  config.hidden_size = 12;
  config.intermediate_size = 10;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 3;
  config.max_position_embeddings = 9;
  config.initializer_range = 0.4;
  config.tie_word_embeddings = tied;
  return config;
}

struct Text {
  Index length = 7;
  std::vector<std::int32_t> tokens{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 12, 0, 3, 2, 3, 8, 4};
  std::vector<std::int32_t> targets{1, -1, 1, 5, 9, -1, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 7, -1, -1, -1};
  double count = 6;
};

/// A model in float64 on one process, and its loss and gradients on `text`.
struct OneProcess {
  std::unique_ptr<Ops> ops = make_cpu_ops({});
  Model model;
  explicit OneProcess(const ModelConfig& config, Recompute recompute = Recompute::none)
      : model(*ops, config, {DType::float64, recompute, 0}, Stage::whole(config)) {
    ops->device().set_poison(true);
    model.allocate();
    model.initialize(7);
  }
  double run(const Text& text, bool defer = false) {
    const std::vector<std::int32_t> positions = model.attention().positions(text.length);
    MicroBatch micro_batch;
    micro_batch.sequences = static_cast<Index>(text.tokens.size()) / text.length;
    micro_batch.sequence_length = text.length;
    micro_batch.tokens = text.tokens;
    micro_batch.targets = text.targets;
    micro_batch.positions = positions;
    micro_batch.loss_scale = 1 / text.count;
    model.begin_step(1);
    InFlight in_flight;
    model.forward({}, micro_batch, in_flight);
    model.backward({}, micro_batch, in_flight, true, defer);
    if (defer) model.weight_gradients(in_flight, true);
    return model.loss();
  }
};

class OneProcessModel : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(TiedAndUntied, OneProcessModel, testing::Bool(),
                         [](const auto& instance) { return instance.param ? "tied" : "untied"; });

TEST_P(OneProcessModel, AgreesWithTheNaiveModelInLossAndEveryGradient) {
  const ModelConfig config = small_model(GetParam());
  OneProcess one(config);
  const Text text;
  const NaiveResult naive =
      naive_gradients(config, record_weights(one.model), text.tokens, text.targets, text.length);
  EXPECT_NEAR(one.run(text), naive.loss, 1e-13 * std::abs(naive.loss));
  const NamedTensors gradients = record_gradients(one.model);
  ASSERT_EQ(gradients.size(), naive.gradients.size());
  for (const auto& [name, values] : naive.gradients) {
    EXPECT_LT(relative_error(gradients.at(name), values), 1e-12) << name;
  }
}

TEST_P(OneProcessModel, NoticesThatOneWeightOfTheNaiveModelIsDifferent) {
  const ModelConfig config = small_model(GetParam());
  OneProcess one(config);
  const Text text;
  NamedTensors weights = record_weights(one.model);
  weights["model.layers.1.self_attn.k_proj.weight"][5] *= 1.0001;
  const NaiveResult naive = naive_gradients(config, weights, text.tokens, text.targets, text.length);
  one.run(text);
  EXPECT_GT(relative_error(record_gradients(one.model).at("model.layers.0.mlp.up_proj.weight"),
                           naive.gradients.at("model.layers.0.mlp.up_proj.weight")),
            1e-9);
}

TEST_P(OneProcessModel, GradientsAreTheDifferencesOfTheLoss) {
  OneProcess one(small_model(GetParam()));
  const Text text;
  one.run(text);
  const NamedTensors gradients = record_gradients(one.model);
  for (Bucket& bucket : one.model.buckets()) {
    for (std::size_t i = 0; i < bucket.parameters.size(); i++) {
      const Parameter& parameter = bucket.parameters[i];
      const std::vector<double>& gradient = gradients.at(parameter.name);
      double* weights = bucket.weight(static_cast<int>(i)).as<double>();
      for (Index at = 1; at < parameter.local_size(); at += 1 + parameter.local_size() / 5) {
        constexpr double step = 1e-5;
        const double weight = weights[at];
        weights[at] = weight + step;
        const double above = one.run(text);
        weights[at] = weight - step;
        const double below = one.run(text);
        weights[at] = weight;
        // Central differences are good to step^2 and to rounding / step, both about 1e-10 here.
        EXPECT_NEAR((above - below) / (2 * step), gradient[static_cast<std::size_t>(at)], 1e-7)
            << parameter.name << " element " << at;
      }
    }
  }
}

TEST_P(OneProcessModel, RecomputingAndDeferringWeightGradientsChangeNoBit) {
  OneProcess reference(small_model(GetParam()));
  const Text text;
  const double loss = reference.run(text);
  const NamedTensors gradients = record_gradients(reference.model);
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    for (const bool defer : {false, true}) {
      OneProcess other(small_model(GetParam()), recompute);
      EXPECT_EQ(other.run(text, defer), loss);
      EXPECT_EQ(record_gradients(other.model), gradients);
    }
  }
}

TEST_P(OneProcessModel, SplitIntoTwoStagesGivesTheSameBits) {
  const ModelConfig config = small_model(GetParam());
  if (config.tie_word_embeddings) return;  // the two copies of a tied matrix are summed by a chapter
  OneProcess whole(config);
  const Text text;
  const double loss = whole.run(text);
  Ops& ops = *whole.ops;
  Model first(ops, config, {DType::float64, Recompute::none, 0}, {0, 1, true, false});
  Model last(ops, config, {DType::float64, Recompute::none, 0}, {1, 1, false, true});
  const std::vector<std::int32_t> positions = first.attention().positions(text.length);
  MicroBatch micro_batch{3, text.length, text.tokens, text.targets, positions, 1 / text.count, 3, false};
  for (Model* stage : {&first, &last}) {
    stage->allocate();
    stage->initialize(7);
    stage->begin_step(1);
  }
  InFlight in_first, in_last;
  last.forward(first.forward({}, micro_batch, in_first), micro_batch, in_last);
  first.backward(last.backward({}, micro_batch, in_last, true), micro_batch, in_first, true);
  EXPECT_EQ(last.loss(), loss);
  NamedTensors gradients = record_gradients(first);
  gradients.merge(record_gradients(last));
  EXPECT_EQ(gradients, record_gradients(whole.model));
}

TEST_P(OneProcessModel, EvaluatesToTheTrainingLossAndLeavesNoTrace) {
  OneProcess one(small_model(GetParam()));
  const Text text;
  const double loss = one.run(text);
  const std::vector<std::int32_t> positions = one.model.attention().positions(text.length);
  const MicroBatch micro_batch{3, text.length, text.tokens, text.targets, positions, 1 / text.count, 3, false};
  const NamedTensors gradients = record_gradients(one.model);
  const Index held = one.ops->device().memory().current_total();
  EXPECT_EQ(one.model.evaluate(micro_batch), loss);
  EXPECT_EQ(one.model.loss(), loss);
  EXPECT_EQ(record_gradients(one.model), gradients);
  EXPECT_EQ(one.ops->device().memory().current_total(), held);
}

TEST(Model, AFullyMaskedBatchHasNoLossAndNoGradient) {
  OneProcess one(small_model(false));
  Text text;
  text.targets.assign(text.targets.size(), -1);
  EXPECT_EQ(one.run(text), 0);
  for (const auto& [name, gradient] : record_gradients(one.model)) {
    for (const double value : gradient) ASSERT_EQ(value, 0) << name;
  }
}

TEST(Model, AHeadOfZerosGivesTheLogarithmOfTheVocabulary) {
  ModelConfig config = small_model(false);
  config.vocab_size = 50257;
  config.num_hidden_layers = 1;
  OneProcess one(config);
  Bucket& head = one.model.buckets().back();
  const Tensor table = head.weight(0);
  one.ops->device().zero(table.data(), table.bytes());
  EXPECT_NEAR(one.run({}), std::log(50257.0), 1e-12);
}

TEST(Model, InitialValuesDependOnNameAndPlaceOnly) {
  OneProcess one(small_model(false)), two(small_model(false), Recompute::full);
  EXPECT_EQ(record_weights(one.model), record_weights(two.model));
  const NamedTensors weights = record_weights(one.model);
  EXPECT_NE(weights.at("model.layers.0.self_attn.q_proj.weight"), weights.at("model.layers.1.self_attn.q_proj.weight"));
  // A slice of a split parameter holds the same numbers as the whole.
  Parameter whole{"w", 6, 4, Parameter::Split::rows, {0, 6, 6}, {}};
  Parameter part{"w", 6, 4, Parameter::Split::rows, {2, 3, 4}, {}};
  EXPECT_EQ(InitialValues(part, 1)(part.global_index(5)), InitialValues(whole, 1)(13));
  EXPECT_EQ(part.global_index(3 * 4), -1) << "a padding row";
}

TEST(Model, ActivationsHeldAfterForwardGoBackWithBackward) {
  OneProcess one(small_model(false));
  const Text text;
  one.run(text);
  EXPECT_EQ(one.ops->device().memory().current(MemoryCategory::activations), 0);
}

}  // namespace
}  // namespace escalera
