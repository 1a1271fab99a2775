// What tensor parallelism promises piece by piece: a parameter inside the region, a loss over a split vocabulary, sums that are
// rounded once, deferred weight gradients, refusals.
#include <gtest/gtest.h>

#include <cmath>

#include "common/optim/optimizer.h"
#include "common/train/gradient_sums.h"
#include "step03_tp/tests/gated_feed_forward.h"
#include "step03_tp/tests/parity_run.h"
#include "tests/support/refusal.h"

namespace escalera {
namespace {

constexpr std::uint64_t seed = 42;

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

// ---- C22: sums in bfloat16 ------------------------------------------------------------------------------------------

TEST(SumsOverSixteenRanks, AreRoundedOnceAndGradientsNotAtAll) {
  ModelConfig config = tp_model({});
  config.num_attention_heads = 16;
  config.intermediate_size = 80;
  on_ranks(16, [&](Communicator& world, Ops& ops) {
    TensorParallel plain(ops, world, config, {});
    const std::vector<double> mine(4, world.rank() == 0 ? 256.0 : 1.0);
    // Added one by one in bfloat16, whose neighbour of 256 is 258, the ones would all be lost.
    const Tensor partial = plain.partial_sum(2, 2, DType::bfloat16, MemoryCategory::workspace);
    from_host(ops.device(), mine, partial);
    for (const double value : to_host(ops.device(), plain.exit(partial, MemoryCategory::workspace)))
      EXPECT_EQ(value, 272.0);

    TensorParallel region(ops, world, config, {true, false, true});
    Model model(ops, config, {DType::bfloat16, Recompute::none, 0}, Stage::whole(config),
                {.region = &region});
    model.allocate();
    model.begin_step(1);
    const Tensor norm = model.buckets()[1].gradient(0);
    ASSERT_EQ(model.buckets()[1].parameters[0].name, "model.layers.0.input_layernorm.weight");
    from_host(ops.device(), std::vector<double>(static_cast<std::size_t>(norm.size()), mine[0]), norm);
    sum_gradients(model.buckets());
    for (const double value : to_host(ops.device(), norm)) EXPECT_EQ(value, 271.0);
  });
}

// ---- C29: weight decay in slices ------------------------------------------------------------------------------------

TEST(WeightDecay, ShrinksTheSlicesOfMatricesAndLeavesNormsAlone) {
  const ModelConfig config = tp_model({});
  on_ranks(4, [&](Communicator& world, Ops& ops) {
    TensorParallel region(ops, world, config, {true, false, true});
    Model model(ops, config, {DType::float64, Recompute::none, 0}, Stage::whole(config), {.region = &region});
    model.allocate();
    model.initialize(seed);
    const NamedTensors before = gather_tensors(world, model, Held::master);
    OptimizerSettings settings;
    settings.weight_decay = 0.1;
    model.begin_step(1);
    make_optimizer(ops, model.buckets(), settings)->update(0.1, 1.0);
    const NamedTensors after = gather_tensors(world, model, Held::master);
    for (const auto& [name, values] : before) {
      const double factor = name.find("norm") != std::string::npos ? 1.0 : 0.99;
      for (std::size_t i = 0; i < values.size(); i++)
        EXPECT_NEAR(after.at(name)[i], factor * values[i], 1e-15) << name;
    }
  });
}

// ---- Weight gradients computed later, as pipelines do -----------------------------------------------------------------

TEST(DeferredWeightGradients, AreTheSameBits) {
  const ModelConfig config = tp_model({});
  const auto gradients = [&](const TensorParallelSettings& settings, bool defer) {
    NamedTensors all;
    on_ranks(4, [&](Communicator& world, Ops& ops) {
      TensorParallel region(ops, world, config, settings);
      Model model(ops, config, {DType::float64, Recompute::selective, 0}, Stage::whole(config),
                  {.region = &region});
      model.allocate();
      model.initialize(seed);
      const ParityBatch batch(config, 0, 4);
      const std::vector<std::int32_t> positions = model.attention().positions(batch.length);
      const MicroBatch micro_batch = batch.micro_batch(0, 4, positions);
      model.begin_step(1);
      InFlight in_flight;
      model.forward({}, micro_batch, in_flight);
      model.backward({}, micro_batch, in_flight, true, defer);
      if (defer) model.weight_gradients(in_flight, true);
      sum_gradients(model.buckets());
      NamedTensors mine = gather_tensors(world, model, Held::gradients);
      if (world.rank() == 0) all = std::move(mine);
    });
    return all;
  };
  for (const bool sequence_parallel : {false, true}) {
    for (const bool overlap : {false, true}) {
      const TensorParallelSettings settings{sequence_parallel, overlap, true};
      EXPECT_EQ(gradients(settings, true), gradients(settings, false));
    }
  }
}

// ---- Refusals: C08, C15, without any rank -----------------------------------------------------------------------------

TEST(Refusals, NameTheNumbersAndAValueThatWorks) {
  const auto refused = [](const ModelConfig& model, int ranks, const TensorParallelSettings& settings = {}) {
    return refusal([&] { TensorParallel::validate(model, ranks, ranks, settings); });
  };
  const ModelConfig good = tp_model({});
  for (const int ranks : {1, 2, 4, 8}) EXPECT_EQ(refused(good, ranks), "");
  EXPECT_TRUE(mentions(refused(good, 3), {"--num-attention-heads 8", "--tp 3", "--tp 1 --dp 3 would work"}));
  EXPECT_EQ(refused(good, 2), "");
  ModelConfig six = good;
  six.num_attention_heads = 6;
  EXPECT_TRUE(mentions(refused(six, 4), {"--num-attention-heads 6", "--tp 4", "--tp 2 --dp 2 would work"}));
  ModelConfig three = good;
  three.num_attention_heads = 12;
  three.num_key_value_heads = 3;
  EXPECT_TRUE(mentions(refused(three, 2), {"--num-key-value-heads 3", "--tp 2", "--num-attention-heads 12"}));
  EXPECT_TRUE(mentions(refused(good, 4, {false, false, false}),
                       {"--num-key-value-heads 2", "--tp 4", "--no-kv-replication", "--tp 2 --dp 2 would work"}));
  ModelConfig narrow = good;
  narrow.intermediate_size = 70;
  EXPECT_TRUE(
      mentions(refused(narrow, 4), {"--intermediate-size 70", "--tp 4", "--tp 2", "--intermediate-size 72"}));
  ModelConfig few = good;
  few.vocab_size = 9;  // 2 rows each: rank 5 and those behind it would have none
  EXPECT_TRUE(mentions(refused(few, 8), {"--vocab-size 9", "--tp 8", "--tp 2 --dp 4", "--vocab-size 16"}));

  const auto rows_refused = [](Index micro_batch_size, Index seq_length, int ranks, Index longest = 32) {
    return refusal([&] {
      TensorParallel::validate_rows(micro_batch_size, seq_length, longest, ranks, {true, false, true});
    });
  };
  EXPECT_EQ(rows_refused(2, 6, 4), "");
  EXPECT_TRUE(mentions(rows_refused(2, 5, 4), {"--micro-batch-size 2", "--seq-length 5", "10 rows", "--tp 4",
                                               "--seq-length 6 would work"}));
  EXPECT_TRUE(mentions(rows_refused(2, 5, 4, 5), {"--seq-length 4 would work"}));  // 6 would be too long for the model
  EXPECT_TRUE(mentions(rows_refused(1, 1, 4, 1), {"--micro-batch-size 4 would work"}));
}

}  // namespace
}  // namespace escalera
