// The formulas of step 2 against published numbers and closed forms.
#include <gtest/gtest.h>

#include "common/train/formulas.h"
#include "step02_fsdp/formulas.h"

namespace escalera {
namespace {

ShardedRun run_of(int zero, int shards, Index micro_batches = 1, Index prefetch = 0, bool tied = false) {
  ShardedRun run;
  run.model.vocab_size = 64;
  run.model.hidden_size = 16;
  run.model.intermediate_size = 32;
  run.model.num_hidden_layers = 5;
  run.model.num_attention_heads = 4;
  run.model.num_key_value_heads = 2;
  run.model.tie_word_embeddings = tied;
  run.sharding.zero = zero;
  run.sharding.prefetch = prefetch;
  run.shards = shards;
  run.micro_batches = micro_batches;
  return run;
}

ShardedRun eight_billion(int zero, DType dtype) {
  ShardedRun run = run_of(zero, zero == 0 ? 1 : 8);
  TrainOptions options;
  options.model_name = "llama-3-8b";
  resolve_model(options);
  run.model = options.model;
  run.dtype = dtype;
  if (zero == 0) run.replicas = 8;
  return run;
}

double gib(const ShardedMemory::Bytes& bytes) {
  return static_cast<double>(bytes.per_rank) / (1 << 30);
}

// The published chart of an 8B model on 8 ranks: parameters 15 GiB in 16 bits, two moments 60 GiB, rounded.
TEST(ShardedMemory, IsThatOfThePublishedChart) {
  EXPECT_NEAR(gib(sharded_memory(eight_billion(0, DType::bfloat16)).parameters), 15, 0.15);
  EXPECT_NEAR(gib(sharded_memory(eight_billion(2, DType::bfloat16)).parameters), 15, 0.15);
  EXPECT_NEAR(gib(sharded_memory(eight_billion(3, DType::bfloat16)).parameters), 1.875, 0.01875);
  EXPECT_NEAR(gib(sharded_memory(eight_billion(0, DType::float32)).optimizer), 60, 0.6);
  EXPECT_NEAR(gib(sharded_memory(eight_billion(1, DType::float32)).optimizer), 7.5, 0.075);
  // Gradients are summed in float32 here: twice the chart's 15 GiB.
  EXPECT_NEAR(gib(sharded_memory(eight_billion(1, DType::bfloat16)).gradients), 30, 0.3);
  EXPECT_NEAR(gib(sharded_memory(eight_billion(2, DType::bfloat16)).gradients), 3.75, 0.0375);
}

TEST(ShardedMemory, PaddingIsWhatEqualPartsNeed) {
  const ShardedRun run = run_of(3, 7);
  const Index count = parameter_count(run.model);
  const ShardedMemory memory = sharded_memory(run);
  EXPECT_EQ(7 * memory.parameters.per_rank, 4 * count + memory.parameters.padding);
  EXPECT_GT(memory.parameters.padding, 0);
  EXPECT_LE(memory.parameters.padding, 4 * 7 * 6);  // at most 6 elements in each of 7 buckets
  EXPECT_EQ(sharded_memory(run_of(3, 1)).parameters.padding, 0);
}

// Of a rank, in elements: 2 (d-1)/d N for stage 0 and 1, (m+1) (d-1)/d N for stage 2, 3 m (d-1)/d N for stage 3 with no prefetch, less what is
// kept: the head between its forward and backward, the embedding between two micro-batches.
TEST(StepTraffic, IsTheRingFormula) {
  constexpr Index m = 3, d = 4;
  const Index count = parameter_count(run_of(0, 1).model), table = 64 * 16, head = table + 16;
  ShardedRun plain = run_of(0, 1, m);
  plain.replicas = d;
  EXPECT_EQ(step_traffic(plain)[Operation::all_reduce], 2 * (d - 1) * count * 4);
  EXPECT_EQ(step_traffic(plain)[Operation::all_gather], 0);
  for (const int zero : {1, 2}) {
    EXPECT_EQ(step_traffic(run_of(zero, d, m))[Operation::reduce_scatter],
              (zero == 1 ? 1 : m) * (d - 1) * count * 4);
    EXPECT_EQ(step_traffic(run_of(zero, d, m))[Operation::all_gather], (d - 1) * count * 4);
  }
  EXPECT_EQ(step_traffic(run_of(3, d, m))[Operation::reduce_scatter], m * (d - 1) * count * 4);
  EXPECT_EQ(step_traffic(run_of(3, d, m))[Operation::all_gather],
            (d - 1) * (2 * m * count - m * head - (m - 1) * table) * 4);
  ShardedRun kept = run_of(3, d, m);
  kept.sharding.reshard_after_forward = false;
  EXPECT_EQ(step_traffic(kept)[Operation::all_gather], (d - 1) * count * 4);
}

TEST(StepTraffic, AWideWindowGathersLess) {
  const Index count = parameter_count(run_of(3, 4).model);
  Index before = step_traffic(run_of(3, 4, 2, 0))[Operation::all_gather];
  for (const Index prefetch : {2, 4, 6, 100}) {
    const Index now = step_traffic(run_of(3, 4, 2, prefetch))[Operation::all_gather];
    EXPECT_LT(now, before + (prefetch == 100 ? 1 : 0)) << prefetch;
    before = now;
  }
  EXPECT_EQ(before, 3 * count * 4);  // the window holds the whole step: nothing is gathered twice
}

TEST(StepTraffic, ReplicasExchangePartsAlone) {
  ShardedRun run = run_of(2, 2, 3);
  run.replicas = 4;
  const Index count = parameter_count(run.model);
  EXPECT_EQ(step_traffic(run)[Operation::all_reduce], 2 * (4 - 1) * count * 4);
  EXPECT_EQ(step_traffic(run)[Operation::reduce_scatter], 4 * 3 * (2 - 1) * count * 4);
  run.sharding.reduce_dtype = DType::bfloat16;
  EXPECT_EQ(step_traffic(run)[Operation::all_reduce], 2 * (4 - 1) * count * 2);
}

TEST(GatheredPeak, IsThatOfThePrefetchedUnits) {
  const Index table = 64 * 16 * 4, head = table + 16 * 4;
  const Index block = (parameter_count(run_of(3, 4).model) * 4 - table - head) / 5;
  EXPECT_EQ(gathered_peak(run_of(2, 4)), 0);
  EXPECT_EQ(gathered_peak(run_of(3, 1)), 0);
  EXPECT_EQ(gathered_peak(run_of(3, 4)), std::max(block, head));
  EXPECT_EQ(gathered_peak(run_of(3, 4, 1, 1)), std::max(block + head, 2 * block));
  EXPECT_EQ(gathered_peak(run_of(3, 4, 1, 100)), 5 * block + table + head);
  ShardedRun kept = run_of(3, 4);
  kept.sharding.reshard_after_forward = false;
  EXPECT_EQ(gathered_peak(kept), 5 * block + table + head);
}

}  // namespace
}  // namespace escalera
