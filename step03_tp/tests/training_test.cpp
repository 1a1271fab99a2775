// Short trainings in slices: padding that stays padding, norms that stay together, initial weights that do not depend on t.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "common/optim/optimizer.h"
#include "common/train/gradient_sums.h"
#include "common/train/replicas.h"
#include "step03_tp/tests/parity_run.h"

namespace escalera {
namespace {

constexpr std::uint64_t seed = 42;

// ---- C06: a vocabulary that no number of ranks divides --------------------------------------------------------------

ModelConfig wide_vocabulary_model() {
  ModelConfig config = tp_model({});
  config.vocab_size = 50257;
  config.hidden_size = 10;
  config.num_hidden_layers = 1;
  return config;
}

/// A few steps of AdamW on `ranks` ranks; the losses, and the head's weights at the end. `check` sees the model after each
/// backward.
struct Training {
  std::vector<double> losses;
  NamedTensors weights;
};
Training train(const ModelConfig& config, int ranks, const TensorParallelSettings& settings, Index steps,
               const std::function<void(Communicator&, Model&)>& prepare = {},
               const std::function<void(Communicator&, Model&)>& check = {}) {
  Training result;
  on_ranks(ranks, [&](Communicator& world, Ops& ops) {
    TensorParallel region(ops, world, config, settings);
    Model model(ops, config, {DType::float64, Recompute::none, 0}, Stage::whole(config), {.region = &region});
    model.allocate();
    model.initialize(seed);
    if (prepare) prepare(world, model);
    const std::unique_ptr<Optimizer> optimizer = make_optimizer(ops, model.buckets(), {});
    for (Index step = 0; step < steps; step++) {
      const ParityBatch batch(config, step, 4);
      const std::vector<std::int32_t> positions = model.attention().positions(batch.length);
      const MicroBatch micro_batch = batch.micro_batch(0, 4, positions);
      model.begin_step(1);
      InFlight in_flight;
      model.forward({}, micro_batch, in_flight);
      model.backward({}, micro_batch, in_flight, true);
      sum_gradients(model.buckets());
      if (check) check(world, model);
      const double loss = world.sum(model.loss());
      const double norm = std::sqrt(world.sum(model.squared_gradient_norm()));
      optimizer->update(1e-2, clip_factor(norm, 1.0));
      check_replicas(world, model, step + 1);
      if (world.rank() == 0) result.losses.push_back(loss);
    }
    NamedTensors weights = gather_tensors(world, model, Held::master);
    if (world.rank() == 0) result.weights = std::move(weights);
  });
  return result;
}

void expect_same(const Training& got, const Training& reference, double tolerance) {
  ASSERT_EQ(got.losses.size(), reference.losses.size());
  for (std::size_t i = 0; i < got.losses.size(); i++) {
    EXPECT_NEAR(got.losses[i], reference.losses[i], tolerance * reference.losses[i]) << "step " << i + 1;
  }
  for (const auto& [name, values] : reference.weights) {
    EXPECT_LE(relative_error(got.weights.at(name), values), tolerance) << name;
  }
}

TEST(PaddedVocabulary, TwentyStepsAreThoseOfOneProcessAndPaddingStaysZero) {
  const ModelConfig config = wide_vocabulary_model();
  const Training one = train(config, 1, {}, 20);
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const int ranks : {2, 4}) {
    Index padded_elements = 0;
    std::mutex mutex;
    const Training many = train(config, ranks, {}, 20, {}, [&](Communicator&, Model& model) {
      for (Bucket& bucket : model.buckets()) {
        for (const Parameter& parameter : bucket.parameters) {
          for (Index i = 0; i < parameter.local_size(); i++) {
            if (parameter.global_index(i) >= 0) continue;
            // Exactly: AdamW would make a step of any size of the smallest number.
            EXPECT_EQ(bucket.gradients.as<double>()[parameter.offset + i], 0.0) << parameter.name;
            EXPECT_EQ(bucket.weights.as<double>()[parameter.offset + i], 0.0) << parameter.name;
            const std::lock_guard lock(mutex);
            padded_elements++;
          }
        }
      }
    });
    // 50257 = 2 * 25129 - 1 = 4 * 12565 - 3; ten columns in each of two matrices, in 20 steps.
    EXPECT_EQ(padded_elements, 20 * 2 * 10 * (ranks - 1));
    // AdamW divides by the root of squares: near zero it multiplies differences.
    expect_same(many, one, 1e-7);
    EXPECT_EQ(many.weights.at("lm_head.weight").size(), 50257U * 10);
  }
}

TEST(PaddedVocabulary, AHeadOfZerosFindsAllWordsEquallyLikely) {
  for (const int ranks : {1, 2, 4}) {
    const Training still = train(wide_vocabulary_model(), ranks, {}, 1, [](Communicator&, Model& model) {
      Bucket& bucket = model.buckets().back();
      for (std::size_t i = 0; i < bucket.parameters.size(); i++) {
        if (bucket.parameters[i].name != "lm_head.weight") continue;
        const Tensor weight = bucket.weight(static_cast<int>(i));
        model.ops().device().zero(weight.data(), weight.bytes());
      }
    });
    EXPECT_NEAR(still.losses[0], std::log(50257.0), 1e-12);  // 10.8249
  }
}

// ---- C07: norms under sequence parallelism --------------------------------------------------------------------------

TEST(SequenceParallelNorms, AreTheSameBitsOnAllRanksAndTheNumbersOfOneProcessAfterTenSteps) {
  const ModelConfig config = tp_model({});
  const Training one = train(config, 1, {}, 10);
  std::vector<std::vector<double>> norms(2);
  const Training two = train(config, 2, {true, false, true}, 10, {}, [&](Communicator& world, Model& model) {
    std::vector<double>& mine = norms[static_cast<std::size_t>(world.rank())];
    mine.clear();
    for (Bucket& bucket : model.buckets()) {
      for (std::size_t i = 0; i < bucket.parameters.size(); i++) {
        if (bucket.parameters[i].decay) continue;
        for (const double value : to_host(model.ops().device(), bucket.weight(static_cast<int>(i))))
          mine.push_back(value);
      }
    }
  });
  EXPECT_EQ(norms[0].size(),
            static_cast<std::size_t>((2 * config.num_hidden_layers + 1) * config.hidden_size));
  EXPECT_EQ(norms[0], norms[1]);
  EXPECT_NE(norms[0].front(), 1.0);  // they have been trained
  expect_same(two, one, 1e-7);
}

// ---- C09: initial weights -------------------------------------------------------------------------------------------

TEST(InitialWeights, AreTheSameForEveryNumberOfRanksAndDifferBetweenThem) {
  const ModelConfig config = tp_model({});
  const auto whole_weights = [&](int ranks) { return train(config, ranks, {}, 0).weights; };
  const NamedTensors one = whole_weights(1);
  for (const int ranks : {2, 4, 8}) EXPECT_EQ(whole_weights(ranks), one) << ranks << " ranks";
  EXPECT_NE(one.at("model.layers.0.self_attn.q_proj.weight"),
            one.at("model.layers.1.self_attn.q_proj.weight"));
  std::vector<std::vector<double>> slices(2);
  train(config, 2, {}, 0, [&](Communicator& world, Model& model) {
    const Bucket& bucket = model.buckets()[1];
    slices[static_cast<std::size_t>(world.rank())] = to_host(model.ops().device(), bucket.weight(2));
  });
  EXPECT_EQ(slices[0].size(), slices[1].size());
  EXPECT_NE(slices[0], slices[1]);
}

}  // namespace
}  // namespace escalera
