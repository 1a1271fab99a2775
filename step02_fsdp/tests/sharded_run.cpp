#include "step02_fsdp/tests/sharded_run.h"

#include <gtest/gtest.h>

#include "tests/support/pairwise.h"

namespace escalera {
namespace {

/// FullySharded with one thing wrong.
class Faulty final : public UnitHooks {
 public:
  Faulty(FullySharded& hooks, Ops& ops, Fault fault) : hooks_(hooks), ops_(ops), fault_(fault) {}

  void announce(std::span<Unit* const> visits) override { hooks_.announce(visits); }
  void before_forward(Unit& unit) override { hooks_.before_forward(unit); }
  void before_backward(Unit& unit) override { hooks_.before_backward(unit); }
  void after_forward(Unit& unit) override {
    if (fault_ != Fault::never_released) hooks_.after_forward(unit);
  }
  void after_backward(Unit& unit) override {
    if (fault_ != Fault::never_released) hooks_.after_backward(unit);
  }
  void after_weight_gradients(Unit& unit, bool last) override {
    if (fault_ == Fault::overwritten_gradient) {
      for (Bucket* bucket : unit.owns()) ops_.scale(bucket->gradient_shard, 0);
    }
    hooks_.after_weight_gradients(unit, last);
  }

 private:
  FullySharded& hooks_;
  Ops& ops_;
  Fault fault_;
};

}  // namespace

ModelConfig sharded_model(bool tied) {
  ModelConfig config = parity_model(tied);
  config.hidden_size = 47;
  config.head_dim = 8;
  config.intermediate_size = 77;
  return config;
}

ShardedResult run_case(Communicator& world, const ShardedCase& test, Trace* trace) {
  const std::unique_ptr<Ops> ops = make_cpu_ops({});
  return run_case(world, world, *ops, test, trace);
}

ShardedResult run_case(Communicator& world, Communicator& tensors, Ops& ops, const ShardedCase& test,
                       Trace* trace) {
  ops.device().set_poison(true);
  const int rank = tensors.rank();
  const auto shard = tensors.split(rank / test.shards, rank, "shard");
  const auto replicas = tensors.split(rank % test.shards, rank, "replicas");
  const auto alone = tensors.split(rank, 0, "alone");
  const ModelConfig config = sharded_model(test.tied);
  FullySharded fsdp(*shard, test.fault == Fault::replicas_left_out ? *alone : *replicas, test.sharding);
  Faulty hooks(fsdp, ops, test.fault);
  Model model(ops, config, {test.dtype, test.recompute, 0}, Stage::whole(config), {.hooks = &hooks});
  model.set_trace(trace);
  fsdp.shard(model);
  model.allocate();
  const Index shift = test.fault == Fault::shifted_shard && shard->rank() > 0 ? 1 : 0;
  for (Bucket& bucket : model.buckets()) bucket.shard_begin -= shift;
  initialize_rounded(model, parity_seed, test.rounding);
  for (Bucket& bucket : model.buckets()) bucket.shard_begin += shift;
  const auto gather = [&] {
    fsdp.after_update();
    fsdp.finish_gathers();
  };
  gather();
  shard->reset_traffic();  // of the steps alone
  ShardedResult result;
  result.record = run_parity(model, {.world = world,
                                     .parts = tensors.size(),
                                     .part = rank,
                                     .accumulation = test.accumulation,
                                     .sequences = test.sequences(),
                                     .reduce = [&] { fsdp.finish_step(); },
                                     .sum_loss = [&](double loss) { return tensors.sum(loss); },
                                     .sum_squares = [&](double squares) { return shard->sum(squares); },
                                     .after_update = gather});
  const MemoryLedger& memory = ops.device().memory();
  result.parameters = memory.peak(MemoryCategory::parameters);
  result.gradients = memory.peak(MemoryCategory::gradients);
  result.optimizer = memory.peak(MemoryCategory::optimizer);
  result.communication = memory.peak(MemoryCategory::communication);
  result.gathered = fsdp.peak_gathered();
  result.gathered_units = fsdp.peak_gathered_units();
  for (int i = 0; i < operation_count; i++) {
    const auto operation = static_cast<Operation>(i);
    result.traffic[operation] = shard->traffic(operation).bytes + replicas->traffic(operation).bytes;
  }
  return result;
}

ShardedRun formulas_of(const ShardedCase& test) {
  return {sharded_model(test.tied), test.dtype,       OptimizerKind::sgd, test.sharding, test.shards,
          test.ranks / test.shards, test.accumulation};
}

void expect_predicted(const ShardedResult& result, const TrafficPrediction& all_ranks,
                      const ShardedCase& test, bool staged) {
  const ShardedRun run = formulas_of(test);
  const ShardedMemory memory = sharded_memory(run);
  EXPECT_EQ(result.parameters, memory.parameters.per_rank);
  EXPECT_EQ(result.gradients, memory.gradients.per_rank);
  EXPECT_EQ(result.optimizer, memory.optimizer.per_rank);
  EXPECT_EQ(result.gathered, gathered_peak(run));
  if (staged) {
    EXPECT_GT(result.communication, communication_peak(run));
  } else {
    EXPECT_EQ(result.communication, communication_peak(run));
  }
  if (test.sharding.reshard_after_forward) {
    EXPECT_LE(result.gathered_units, test.sharding.prefetch + 1);
  }
  const TrafficPrediction step = step_traffic(run);
  for (int i = 0; i < operation_count; i++) {
    const auto operation = static_cast<Operation>(i);
    EXPECT_EQ(all_ranks[operation], 2 * step[operation]) << to_string(operation);
  }
}

std::string name_of(const ShardedCase& test) {
  return fmt::format("dp{}_shards{}_zero{}_prefetch{}_accumulation{}_{}_recompute_{}_{}", test.ranks,
                     test.shards, test.sharding.zero, test.sharding.prefetch, test.accumulation,
                     test.sharding.reshard_after_forward ? "reshard" : "keep", to_string(test.recompute),
                     test.tied ? "tied" : "untied");
}

void PrintTo(const ShardedCase& test, std::ostream* out) {
  *out << name_of(test);
}

std::vector<ShardedCase> all_cases(const std::vector<int>& ranks) {
  std::vector<ShardedCase> cases;
  ShardedCase test;
  for (const int count : ranks) {
    test.ranks = count;
    for (int stage = 0; stage <= 3; stage++) {
      test.sharding.zero = stage;
      for (int shards = 1; shards <= count; shards++) {
        // Stage 0 is a shard group of one; elsewhere that would be stage 0 again.
        if (count % shards != 0 || (shards == 1) != (stage == 0)) continue;
        test.shards = shards;
        for (const Index prefetch : {0, 1, 3}) {
          test.sharding.prefetch = prefetch;
          for (const bool reshard : {true, false}) {
            if (!reshard && stage < 3) continue;
            test.sharding.reshard_after_forward = reshard;
            for (const Index accumulation : {1, 3}) {
              test.accumulation = accumulation;
              for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
                test.recompute = recompute;
                for (const bool tied : {false, true}) {
                  test.tied = tied;
                  cases.push_back(test);
                }
              }
            }
          }
        }
      }
    }
  }
  return cases;
}

std::vector<ShardedCase> pairwise_cases(const std::vector<int>& ranks) {
  return pairwise(all_cases(ranks), [](const ShardedCase& test) {
    return std::vector<long>{test.ranks,
                             test.shards,
                             test.sharding.zero,
                             test.sharding.prefetch,
                             test.accumulation,
                             test.sharding.reshard_after_forward,
                             test.tied,
                             static_cast<long>(test.recompute)};
  });
}

}  // namespace escalera
