// What is special about parts: where they begin, what is between them, and what is done to them alone.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "common/comm/launch.h"
#include "common/optim/optimizer.h"
#include "step02_fsdp/fully_sharded.h"
#include "step02_fsdp/tests/sharded_run.h"
#include "tests/support/refusal.h"

namespace escalera {
namespace {

/// A model that is shared out, on one of several threads.
struct Sharded {
  Sharded(Communicator& world, int shards, const ShardingSettings& settings, DType dtype = DType::float64,
          bool tied = false)
      : shard(world.split(world.rank() / shards, world.rank(), "shard")),
        replicas(world.split(world.rank() % shards, world.rank(), "replicas")),
        fsdp(*shard, *replicas, settings),
        model(*ops, sharded_model(tied), {dtype, Recompute::none, 0}, Stage::whole(sharded_model(tied)),
              {.hooks = &fsdp}) {
    ops->device().set_poison(true);
    fsdp.shard(model);
    model.allocate();
    model.initialize(parity_seed);
    fsdp.after_update();
  }
  std::vector<double> host(const Tensor& tensor) { return to_host(ops->device(), tensor); }

  std::unique_ptr<Ops> ops = make_cpu_ops({});
  std::unique_ptr<Communicator> shard, replicas;
  FullySharded fsdp;
  Model model;
};

ShardingSettings stage(int zero, Index prefetch = 1) {
  ShardingSettings settings;
  settings.zero = zero;
  settings.prefetch = prefetch;
  return settings;
}

/// Runs `body` on threads; a failed expectation there fails the test.
void on_threads(int ranks, const std::function<void(Communicator& world)>& body) {
  EXPECT_EQ(launch({CommKind::threads, ranks}, body), 0);
}

std::vector<std::vector<double>> weights_of_one_process(bool tied) {
  const std::unique_ptr<Ops> ops = make_cpu_ops({});
  Model model(*ops, sharded_model(tied), {DType::float64, Recompute::none, 0},
              Stage::whole(sharded_model(tied)));
  model.allocate();
  model.initialize(parity_seed);
  std::vector<std::vector<double>> all;
  for (const Bucket& bucket : model.buckets()) all.push_back(to_host(ops->device(), bucket.weights));
  return all;
}

// C09. Not as an export puts them together, but as the visits see them: in place, with zeros behind them.
TEST(Sharded, EveryVisitSeesTheFirstWeightsOfOneProcessWithZerosBehindThem) {
  const auto expected = weights_of_one_process(true);
  for (const int zero : {1, 2, 3}) {
    on_threads(3, [&](Communicator& world) {
      Sharded run(world, 3, stage(zero), DType::float64, true);
      std::vector<Unit*> visits;
      for (const auto& unit : run.model.units()) visits.push_back(unit.get());
      run.fsdp.announce(visits);
      Index padding = 0;
      for (Unit* unit : visits) {
        run.fsdp.before_forward(*unit);
        for (const Bucket* bucket : unit->uses()) {
          std::size_t number = 0;
          while (&run.model.buckets()[number] != bucket) number++;
          std::vector<double> weights = run.host(bucket->weights);
          ASSERT_EQ(static_cast<Index>(weights.size()), bucket->flat_size());
          for (Index i = bucket->size; i < bucket->flat_size(); i++)
            EXPECT_EQ(weights[static_cast<std::size_t>(i)], 0);
          padding += bucket->flat_size() - bucket->size;
          weights.resize(static_cast<std::size_t>(bucket->size));
          EXPECT_TRUE(weights == expected[number]) << bucket->name << ", stage " << zero;
        }
        run.fsdp.after_forward(*unit);
      }
      EXPECT_GT(padding, 0) << "nothing is padded: choose another number of ranks";
    });
  }
}

/// Every rank's gradient is `of(rank)` in all elements; returns what rank 0 has of the sum of the first bucket.
std::vector<double> summed_gradient(int ranks, int shards, const ShardingSettings& settings, DType dtype,
                                    const std::function<double(int)>& of) {
  std::vector<double> sum;
  on_threads(ranks, [&](Communicator& world) {
    Sharded run(world, shards, settings, dtype);
    run.model.begin_step(1);
    std::vector<Unit*> units;
    for (const auto& unit : run.model.units()) units.push_back(unit.get());
    for (Unit* unit : units) {
      run.fsdp.before_forward(*unit);
      run.fsdp.after_forward(*unit);
    }
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      run.fsdp.before_backward(**unit);
      for (Bucket* bucket : (*unit)->owns()) {
        from_host(run.ops->device(),
                  std::vector<double>(static_cast<std::size_t>(bucket->flat_size()), of(world.rank())),
                  bucket->gradients);
      }
      run.fsdp.after_backward(**unit);
      run.fsdp.after_weight_gradients(**unit, true);
    }
    run.fsdp.finish_step();
    if (world.rank() == 0) sum = run.host(run.model.buckets()[0].gradient_shard);
  });
  return sum;
}

// C22. 271 needs nine bits, bfloat16 has eight: summed in bfloat16, 256 + 1 would stay 256.
TEST(Sharded, ManySmallGradientsAreNotLostBesideALargeOne) {
  const auto of = [](int rank) { return rank == 0 ? 256.0 : 1.0; };
  for (const int zero : {0, 1, 2, 3}) {
    for (const int shards : {16, 4, 1}) {
      if ((shards == 1) != (zero == 0)) continue;
      for (const double value : summed_gradient(16, shards, stage(zero), DType::bfloat16, of))
        ASSERT_EQ(value, 271);
    }
    // On their way as bfloat16, they are summed in float32 and rounded once, to 272 = 17 * 16.
    ShardingSettings narrow = stage(zero);
    narrow.reduce_dtype = DType::bfloat16;
    for (const double value : summed_gradient(16, zero == 0 ? 1 : 16, narrow, DType::bfloat16, of))
      ASSERT_EQ(value, 272);
  }
}

// A schedule may put off weight gradients until several micro-batches have gone backward.
TEST(Sharded, DeferredWeightGradientsAreNotReducedInTheMidstOfTheNextMicroBatch) {
  const auto gradients = [](int ranks, const ShardingSettings& settings, bool defer) {
    NamedTensors gathered;
    on_threads(ranks, [&](Communicator& world) {
      Sharded run(world, ranks, settings);
      const ParityBatch batch(run.model.config(), 0);
      const std::vector<std::int32_t> positions = run.model.attention().positions(batch.length);
      const Index size = batch.sequences / ranks / 2;
      run.model.begin_step(2);
      std::array<InFlight, 2> in_flight;
      for (const Index number : {0, 1}) {
        const MicroBatch micro_batch = batch.micro_batch((2 * world.rank() + number) * size, size, positions);
        auto& mine = in_flight[static_cast<std::size_t>(number)];
        run.model.forward({}, micro_batch, mine);
        run.model.backward({}, micro_batch, mine, number == 1, defer);
      }
      if (defer) {
        for (const std::size_t number : {0, 1}) run.model.weight_gradients(in_flight[number], number == 1);
      }
      run.fsdp.finish_step();
      const NamedTensors all = gather_tensors(world, run.model, Held::gradients);
      if (world.rank() == 0) gathered = all;
    });
    return gathered;
  };
  const NamedTensors expected = gradients(1, stage(0), false);
  for (const int zero : {1, 2, 3}) {
    const NamedTensors got = gradients(3, stage(zero), true);
    for (const auto& [name, values] : expected)
      EXPECT_LT(relative_error(got.at(name), values), 1e-10) << name << ", stage " << zero;
  }
}

// C29. A shard boundary cuts parameters anywhere; decay must follow the parameter, not the part.
TEST(Sharded, DecayKnowsMatricesFromNormsInParts) {
  NamedTensors before;
  on_threads(1, [&](Communicator& world) {
    Sharded run(world, 1, stage(0));
    before = gather_tensors(world, run.model, Held::master);
  });
  for (const int zero : {1, 2, 3}) {
    on_threads(3, [&](Communicator& world) {
      Sharded run(world, 3, stage(zero));
      run.fsdp.finish_gathers();
      OptimizerSettings settings;
      settings.weight_decay = 0.1;
      const auto optimizer = make_optimizer(*run.ops, run.model.buckets(), settings);
      optimizer->update(0.1, 1);  // gradients are zero
      const NamedTensors after = gather_tensors(world, run.model, Held::master);
      if (world.rank() != 0) return;
      ASSERT_EQ(after.size(), before.size());
      for (const auto& [name, values] : before) {
        const double factor = name.find("norm") == std::string::npos ? 1 - 0.1 * 0.1 : 1;
        for (std::size_t i = 0; i < values.size(); i++) {
          ASSERT_NEAR(after.at(name)[i], factor * values[i], 1e-15) << name << " " << i;
        }
      }
    });
  }
}

TEST(Sharded, AVisitThatWasNotAnnouncedIsNoticed) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch({CommKind::threads, 1},
                   [&](Communicator& world) {
                     Sharded run(world, 1, stage(3));
                     run.model.begin_step(1);
                     run.fsdp.before_forward(*run.model.units()[1]);
                   }),
            1);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("model.layers.0 is visited but was not announced"),
            std::string::npos);
}

TEST(ShardingRequests, ThatCannotBeMetAreRefused) {
  const auto refused = [](const ShardingSettings& settings, std::optional<int> shard_size, int ranks,
                          DType dtype) {
    return refusal([&] { validate_sharding(settings, shard_size, ranks, dtype); });
  };
  EXPECT_EQ(refused(stage(3), {}, 7, DType::float32), "");
  EXPECT_EQ(refused(stage(3), 2, 8, DType::float32), "");
  EXPECT_TRUE(mentions(refused(stage(3), 3, 8, DType::float32),
                       {"--shard-size 3", "8 data-parallel ranks", "use --shard-size 2 or 8"}));
  EXPECT_TRUE(mentions(refused(stage(3), 16, 8, DType::float32),
                       {"--shard-size 16", "8 data-parallel ranks", "use --shard-size 8 or 1"}));
  EXPECT_TRUE(
      mentions(refused(stage(0), 2, 8, DType::float32), {"--shard-size 2", "--zero 0", "--zero 1, 2 or 3"}));
  ShardingSettings narrow = stage(3);
  narrow.reduce_dtype = DType::bfloat16;
  EXPECT_EQ(refused(narrow, {}, 8, DType::bfloat16), "");
  EXPECT_TRUE(
      mentions(refused(narrow, {}, 8, DType::float64), {"--reduce-dtype bfloat16", "--dtype float64"}));
}

}  // namespace
}  // namespace escalera
