// "Prefetched" means that weights arrive while others are computed with: shown by ranks that hold each other up, and by the trace.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "common/comm/launch.h"
#include "step02_fsdp/fully_sharded.h"
#include "step02_fsdp/tests/sharded_run.h"

namespace escalera {
namespace {

using Events = std::vector<TraceEvent>;
using Milliseconds = std::chrono::milliseconds;

/// Two ranks at one step. Rank 1 is held up when it is about to begin the forward of the first unit, whose weights it has: until
/// rank 0 has the weights of the second unit, or for `patience`.
struct Staged {
  Staged(Index prefetch, Milliseconds patience) : traces(2), prefetch_(prefetch), patience_(patience) {
    EXPECT_EQ(launch({CommKind::threads, 2}, [&](Communicator& world) { run(world); }), 0);
  }

  std::vector<Events> traces;
  bool prefetched = false;  // rank 0 had the second weights while rank 1 was still held up
  bool lagged =
      false;  // the same for the gradients of the last unit: rank 0 was through with the unit before it

 private:
  class Hooks final : public UnitHooks {
   public:
    Hooks(Staged& test, FullySharded& fsdp, int rank) : test_(test), fsdp_(fsdp), rank_(rank) {}
    void announce(std::span<Unit* const> visits) override { fsdp_.announce(visits); }
    void before_forward(Unit& unit) override {
      fsdp_.before_forward(unit);
      if (rank_ == 0 && unit.name() == "model.layers.0") test_.has_second_ = true;
      if (rank_ == 1 && unit.name() == "model.embed_tokens")
        test_.prefetched = test_.wait_for(test_.has_second_);
    }
    void after_forward(Unit& unit) override { fsdp_.after_forward(unit); }
    void before_backward(Unit& unit) override { fsdp_.before_backward(unit); }
    void after_backward(Unit& unit) override { fsdp_.after_backward(unit); }
    void after_weight_gradients(Unit& unit, bool last) override {
      // Rank 1 does not give its part of the head's gradient before rank 0 has gone on to the next unit.
      if (rank_ == 1 && unit.name() == "lm_head") test_.lagged = test_.wait_for(test_.has_gone_on_);
      fsdp_.after_weight_gradients(unit, last);
      if (rank_ == 0 && unit.name() == "lm_head") test_.has_gone_on_ = true;
    }

   private:
    Staged& test_;
    FullySharded& fsdp_;
    int rank_;
  };

  bool wait_for(const std::atomic<bool>& what) const {
    const auto give_up = std::chrono::steady_clock::now() + patience_;
    while (!what && std::chrono::steady_clock::now() < give_up) std::this_thread::sleep_for(Milliseconds(1));
    return what;
  }

  void run(Communicator& world) {
    Trace trace;
    trace.enable(true);
    world.set_trace(&trace);
    const auto shard = world.split(0, world.rank(), "shard");
    const auto replicas = world.split(world.rank(), 0, "replicas");
    ShardingSettings settings;
    settings.prefetch = prefetch_;
    FullySharded fsdp(*shard, *replicas, settings);
    Hooks hooks(*this, fsdp, world.rank());
    const ModelConfig config = sharded_model(false);
    const std::unique_ptr<Ops> ops = make_cpu_ops({});
    Model model(*ops, config, {DType::float64, Recompute::none, 0}, Stage::whole(config), {.hooks = &hooks});
    model.set_trace(&trace);
    fsdp.shard(model);
    model.allocate();
    model.initialize(1);
    const ParityBatch batch(config, 0);
    const std::vector<std::int32_t> positions = model.attention().positions(batch.length);
    const MicroBatch micro_batch = batch.micro_batch(24 * world.rank(), 24, positions);
    model.begin_step(1);
    InFlight in_flight;
    model.forward({}, micro_batch, in_flight);
    model.backward({}, micro_batch, in_flight, true);
    fsdp.finish_step();
    traces[static_cast<std::size_t>(world.rank())] = trace.take();
  }

  Index prefetch_;
  Milliseconds patience_;
  std::atomic<bool> has_second_ = false, has_gone_on_ = false;
};

/// Event number `number` with that name and row, by begin.
TraceEvent nth_named(const Events& events, std::size_t number, const std::string& name,
                     const std::string& stream) {
  Events found;
  for (const TraceEvent& event : events) {
    if (event.name == name && event.stream == stream) found.push_back(event);
  }
  std::sort(found.begin(), found.end(),
            [](const TraceEvent& a, const TraceEvent& b) { return a.begin < b.begin; });
  require(number < found.size(), "there are {} events {} on {}", found.size(), name, stream);
  return found[number];
}

TEST(Prefetch, WeightsArriveWhileOthersAreComputedWith) {
  const Staged test(1, Milliseconds(30'000));
  EXPECT_TRUE(test.prefetched)
      << "rank 0 waited for the second weights until rank 1 had gone through its first forward";
  const Events& late = test.traces[1];
  const TraceEvent& forward = nth_named(late, 0, "forward model.embed_tokens", "compute");
  EXPECT_LT(nth_named(late, 1, "all_gather", "shard").begin, forward.end);
  // And the wait for them comes when they are needed, not when they are asked for.
  EXPECT_GE(nth_named(late, 1, "wait all_gather", "compute").begin, forward.end);
}

TEST(Prefetch, GradientsTravelBehindTheNextBackward) {
  const Staged test(1, Milliseconds(30'000));
  EXPECT_TRUE(test.lagged) << "rank 0 waited for the sum of the head's gradients before it went on";
  const Events& punctual = test.traces[0];
  EXPECT_GE(nth_named(punctual, 0, "wait reduce_scatter", "compute").begin,
            nth_named(punctual, 0, "backward model.layers.3", "compute").end);
}

TEST(NoPrefetch, WaitsForEverythingAtOnce) {  // so the tests above can fail
  const Staged test(0, Milliseconds(50));
  EXPECT_FALSE(test.prefetched);
  EXPECT_FALSE(test.lagged);
  for (const Events& events : test.traces) {
    EXPECT_GE(nth_named(events, 1, "all_gather", "shard").begin,
              nth_named(events, 0, "forward model.embed_tokens", "compute").end);
    EXPECT_LE(nth_named(events, 0, "reduce_scatter", "shard").end,
              nth_named(events, 0, "backward model.layers.3", "compute").begin);
  }
}

}  // namespace
}  // namespace escalera
