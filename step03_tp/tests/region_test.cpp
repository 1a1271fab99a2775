// What tensor parallelism promises piece by piece: who holds what, a parameter inside the region, a loss over a split
// vocabulary, norms that stay together.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "common/comm/launch.h"
#include "common/optim/optimizer.h"
#include "common/train/gradient_sums.h"
#include "common/train/replicas.h"
#include "step03_tp/tests/gated_feed_forward.h"
#include "step03_tp/tests/parity_run.h"
#include "tests/support/refusal.h"

namespace escalera {
namespace {

constexpr std::uint64_t seed = 42;

/// Runs `body` on `ranks` threads; fails the test if it throws.
void on_ranks(int ranks, const std::function<void(Communicator& world, Ops& ops)>& body) {
  EXPECT_EQ(launch({CommKind::threads, ranks},
                   [&](Communicator& world) {
                     const std::unique_ptr<Ops> ops = make_cpu_ops({});
                     ops->device().set_poison(true);
                     body(world, *ops);
                   }),
            0);
}

// ---- A parameter inside the region ----------------------------------------------------------------------------------

RunRecord run_gated(int tp, bool sequence_parallel, bool scaled) {
  RunRecord record;
  const ModelConfig config = tp_model({});
  on_ranks(tp, [&](Communicator& world, Ops& ops) {
    TensorParallel region(ops, world, config, {sequence_parallel, false, true});
    Seams seams{.region = &region};
    seams.feed_forward = [&](UnitContext& context, Bucket& bucket, const std::string& prefix) {
      return std::make_unique<GatedFeedForward>(context, bucket, prefix, scaled);
    };
    Model model(ops, config, {DType::float64, Recompute::none, 0}, Stage::whole(config), seams);
    model.allocate();
    model.initialize(seed);
    RunRecord mine = run_parity(model, {.world = world,
                                        .accumulation = tp == 1 ? 3 : 2,
                                        .sequences = 24,
                                        .reduce = [&] { sum_gradients(model.buckets()); },
                                        .sum_loss = [&](double loss) { return world.sum(loss); },
                                        .sum_squares = [&](double squares) { return world.sum(squares); }});
    if (world.rank() == 0) record = std::move(mine);
  });
  return record;
}

TEST(ParameterInsideTheRegion, HasTheGradientOfOneProcessIfWhatAllComputeAlikeIsScaled) {
  const RunRecord one = run_gated(1, false, true);
  for (const bool sequence_parallel : {false, true}) {
    for (const int tp : {2, 4}) {
      const LargestError error = largest_error(run_gated(tp, sequence_parallel, true), one);
      EXPECT_LT(error.value, 1e-10) << error.where;
      // Unscaled, the auxiliary loss counts t times, in the gate and in all that lies before it.
      EXPECT_GT(largest_error(run_gated(tp, sequence_parallel, false), one).value, 1e-4);
    }
  }
}

// ---- C10: logits of +-1000, the target on the other shard -----------------------------------------------------------

TEST(SplitVocabularyLoss, IsFiniteAndRightForLogitsOfAThousand) {
  // Rows of a vocabulary of 4, of which rank 0 has two columns and rank 1 the others; row 2's target is masked.
  const std::vector<std::vector<double>> logits = {
      {1000, -1000, -1000, 999}, {-1000, -1000, 1000, 1000}, {1000, 0, 0, -1000}};
  const std::vector<std::int32_t> targets = {2, 0, -1};
  // log(e^1000 + e^999 + ...) - (-1000), and log(2 e^1000 + ...) - (-1000).
  const double loss = 2000 + std::log1p(std::exp(-1.0)) + 2000 + std::log(2.0);
  const double first = 1 / (1 + std::exp(-1.0));
  const std::vector<std::vector<double>> gradient = {
      {first, 0, -1, 1 - first}, {-1, 0, 0.5, 0.5}, {0, 0, 0, 0}};
  ModelConfig config = tp_model({});
  config.vocab_size = 4;
  on_ranks(2, [&](Communicator& world, Ops& ops) {
    TensorParallel region(ops, world, config, {});
    const Slice mine = region.vocabulary(4);
    const Tensor local = ops.device().zeros(3, 2, DType::float64, MemoryCategory::workspace);
    for (Index row = 0; row < 3; row++) {
      for (Index column = 0; column < 2; column++) {
        local.as<double>()[2 * row + column] =
            logits[static_cast<std::size_t>(row)][static_cast<std::size_t>(mine.begin + column)];
      }
    }
    const Tensor row_max = ops.device().empty(1, 3, DType::float64, MemoryCategory::workspace);
    const Tensor sums = ops.device().empty(2, 3, DType::float64, MemoryCategory::workspace);
    const Tensor total = ops.device().zeros(1, 1, DType::float64, MemoryCategory::workspace);
    ops.cross_entropy_row_max(local, mine.size, row_max);
    region.row_max(row_max);
    ops.cross_entropy_row_sums(local, mine.size, targets, mine.begin, row_max, sums);
    region.row_sum(sums);
    ops.cross_entropy_backward(local, mine.size, targets, mine.begin, row_max, sums, 1.0, region.share(),
                               total);
    EXPECT_NEAR(world.sum(total.as<double>()[0]), loss, 1e-10);
    for (Index row = 0; row < 3; row++) {
      for (Index column = 0; column < 2; column++) {
        EXPECT_NEAR(local.as<double>()[2 * row + column],
                    gradient[static_cast<std::size_t>(row)][static_cast<std::size_t>(mine.begin + column)],
                    1e-12);
      }
    }
  });
}

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

// ---- Refusals: C08, C15, without any rank -----------------------------------------------------------------------------

TEST(Refusals, NameTheNumbersAndAValueThatWorks) {
  const auto refused = [](const ModelConfig& model, int ranks, const TensorParallelSettings& settings = {}) {
    return refusal([&] { TensorParallel::validate(model, ranks, settings); });
  };
  const ModelConfig good = tp_model({});
  for (const int ranks : {1, 2, 4, 8}) EXPECT_EQ(refused(good, ranks), "");
  EXPECT_TRUE(mentions(refused(good, 3), {"--num-attention-heads 8", "--tp 3", "--tp 2 would work"}));
  EXPECT_EQ(refused(good, 2), "");
  ModelConfig six = good;
  six.num_attention_heads = 6;
  EXPECT_TRUE(mentions(refused(six, 4), {"--num-attention-heads 6", "--tp 4", "--tp 2 would work"}));
  ModelConfig three = good;
  three.num_attention_heads = 12;
  three.num_key_value_heads = 3;
  EXPECT_TRUE(mentions(refused(three, 2), {"--num-key-value-heads 3", "--tp 2", "--num-attention-heads 12"}));
  EXPECT_TRUE(mentions(refused(good, 4, {false, false, false}),
                       {"--num-key-value-heads 2", "--tp 4", "--no-kv-replication", "--tp 2 would work"}));
  ModelConfig narrow = good;
  narrow.intermediate_size = 70;
  EXPECT_TRUE(
      mentions(refused(narrow, 4), {"--intermediate-size 70", "--tp 4", "--tp 2", "--intermediate-size 72"}));
  ModelConfig few = good;
  few.vocab_size = 9;  // 2 rows each: rank 5 and those behind it would have none
  EXPECT_TRUE(mentions(refused(few, 8), {"--vocab-size 9", "--tp 8", "--tp 2", "--vocab-size 16"}));

  const auto rows_refused = [](Index micro_batch_size, Index seq_length, int ranks) {
    return refusal([&] {
      TensorParallel::validate_rows(micro_batch_size, seq_length, ranks, {true, false, true});
    });
  };
  EXPECT_EQ(rows_refused(2, 6, 4), "");
  EXPECT_TRUE(mentions(rows_refused(2, 5, 4), {"--micro-batch-size 2", "--seq-length 5", "10 rows", "--tp 4",
                                               "--seq-length 6 would work"}));
}

}  // namespace
}  // namespace escalera
