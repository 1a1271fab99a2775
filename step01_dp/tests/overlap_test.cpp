// "Overlapped" means that something overlaps: the trace shows it.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "common/comm/launch.h"
#include "step01_dp/tests/parity_run.h"

namespace escalera {
namespace {

using Events = std::vector<TraceEvent>;

/// The first step's events of every rank.
std::vector<Events> traces(DpMode mode) {
  std::vector<Events> all(2);
  launch({CommKind::threads, 2}, [&](Communicator& world) {
    Trace trace;
    trace.enable(true);
    world.set_trace(&trace);
    const auto dp = world.split(0, world.rank(), "dp");
    DpCase test;
    test.mode = mode;
    run_case(*dp, test, &trace);
    all[static_cast<std::size_t>(world.rank())] = trace.take();
  });
  return all;
}

const TraceEvent& first_named(const Events& events, const std::string& name, const std::string& stream) {
  const TraceEvent* earliest = nullptr;
  for (const TraceEvent& event : events) {
    if (event.name == name && event.stream == stream && (!earliest || event.begin < earliest->begin)) earliest = &event;
  }
  require(earliest != nullptr, "no event {} on {}", name, stream);
  return *earliest;
}

TEST(OverlappedReduction, StartsBeforeTheBackwardThatItHidesBehindEnds) {
  for (const Events& events : traces(DpMode::overlapped)) {
    const TraceEvent& reduction = first_named(events, "all_reduce", "dp");
    const TraceEvent& last_backward = first_named(events, "backward model.embed_tokens", "compute");
    EXPECT_LT(reduction.begin, last_backward.end);
    // A wait before the backward is over would make the reduction asynchronous by name only.
    const TraceEvent& wait = first_named(events, "wait all_reduce", "compute");
    EXPECT_GE(wait.begin, last_backward.end);
  }
}

TEST(BucketedReduction, StartsAfterTheLastBackward) {  // so the test above can fail
  for (const Events& events : traces(DpMode::bucketed)) {
    EXPECT_GE(first_named(events, "all_reduce", "dp").begin,
              first_named(events, "backward model.embed_tokens", "compute").end);
  }
}

/// Holds one rank up in front of its first backward until the other has finished its own, or for 30 seconds: if the other
/// waits for a reduction inside its backward, the two would wait for each other.
class Late final : public UnitHooks {
 public:
  Late(DataParallel& hooks, bool late, const std::atomic<bool>& other_is_done)
      : hooks_(hooks), late_(late), other_is_done_(other_is_done) {}
  void before_backward(Unit&) override {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (late_ && !other_is_done_ && std::chrono::steady_clock::now() < give_up) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    late_ = false;
  }
  void after_weight_gradients(Unit& unit, bool last) override { hooks_.after_weight_gradients(unit, last); }

 private:
  DataParallel& hooks_;
  bool late_;
  const std::atomic<bool>& other_is_done_;
};

TEST(OverlappedReduction, ALateRankHoldsUpTheReductionAndNotTheBackwardOfTheOthers) {
  std::vector<Events> all(2);
  std::atomic<bool> punctual_is_done = false;
  const ModelConfig config = parity_model(false);
  launch({CommKind::threads, 2}, [&](Communicator& world) {
    Trace trace;
    trace.enable(true);
    world.set_trace(&trace);
    const auto dp = world.split(0, world.rank(), "dp");
    const std::unique_ptr<Ops> ops = make_cpu_ops({});
    DataParallel data_parallel(*dp, DpMode::overlapped, 0);
    Late hooks(data_parallel, world.rank() == 1, punctual_is_done);
    Model model(*ops, config, {DType::float64, Recompute::none, 0}, Stage::whole(config), {.hooks = &hooks});
    model.set_trace(&trace);
    model.allocate();
    model.initialize(1);
    const ParityBatch batch(config, 0);
    const std::vector<std::int32_t> positions = model.attention().positions(batch.length);
    const MicroBatch micro_batch = batch.micro_batch(24 * world.rank(), 24, positions);
    model.begin_step(1);
    InFlight in_flight;
    model.forward({}, micro_batch, in_flight);
    world.barrier();
    model.backward({}, micro_batch, in_flight, true);
    if (world.rank() == 0) punctual_is_done = true;
    data_parallel.finish_step();
    all[static_cast<std::size_t>(world.rank())] = trace.take();
  });
  const TraceEvent& own_backward = first_named(all[0], "backward model.embed_tokens", "compute");
  const TraceEvent& late_backward = first_named(all[1], "backward lm_head", "compute");
  EXPECT_LT(own_backward.end, late_backward.begin) << "the punctual rank was held up in its backward";
  const TraceEvent& reduction = first_named(all[0], "all_reduce", "dp");
  EXPECT_LT(reduction.begin, own_backward.end);
  EXPECT_GT(reduction.end, late_backward.begin) << "the sum cannot be complete before the late rank has its part";
}

}  // namespace
}  // namespace escalera
