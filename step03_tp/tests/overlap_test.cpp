// "--tp-overlap" means that something overlaps: the trace shows it.
#include <gtest/gtest.h>

#include <algorithm>

#include "common/comm/launch.h"
#include "step03_tp/tests/parity_run.h"

namespace escalera {
namespace {

using Events = std::vector<TraceEvent>;

/// All events of both ranks of one step. The products take milliseconds: a thread that is to carry a collective beside them
/// must have time to wake up.
std::vector<Events> traces(bool sequence_parallel, bool overlap) {
  ModelConfig config = tp_model({});
  config.hidden_size = 256;
  config.intermediate_size = 1024;
  std::vector<Events> all(2);
  const int code = launch({CommKind::threads, 2}, [&](Communicator& world) {
    Trace trace;
    trace.enable(true);
    world.set_trace(&trace);
    const auto tp = world.split(0, world.rank(), "tp");
    const std::unique_ptr<Ops> ops = make_cpu_ops({});
    TensorParallel region(*ops, *tp, config, {sequence_parallel, overlap, true});
    region.set_trace(&trace);
    Model model(*ops, config, {DType::float64, Recompute::none, 0}, Stage::whole(config),
                {.region = &region});
    model.allocate();
    model.initialize(1);
    const ParityBatch batch(config, 0);
    const std::vector<std::int32_t> positions = model.attention().positions(batch.length);
    const MicroBatch micro_batch = batch.micro_batch(0, batch.sequences, positions);
    model.begin_step(1);
    InFlight in_flight;
    model.forward({}, micro_batch, in_flight);
    model.backward({}, micro_batch, in_flight, true);
    all[static_cast<std::size_t>(world.rank())] = trace.take();
  });
  EXPECT_EQ(code, 0);
  return all;
}

/// Spans of one name on one row, in order of time.
Events named(const Events& events, const std::string& name, const std::string& stream) {
  Events found;
  std::copy_if(events.begin(), events.end(), std::back_inserter(found),
               [&](const TraceEvent& event) { return event.name == name && event.stream == stream; });
  std::sort(found.begin(), found.end(),
            [](const TraceEvent& a, const TraceEvent& b) { return a.begin < b.begin; });
  return found;
}

bool meet(const TraceEvent& a, const TraceEvent& b) {
  return a.begin < b.end && b.begin < a.end;
}

/// A product and the collective that is to run beside it.
struct Hidden {
  std::string piece, collective;
};

/// Whether any of the products ran while one of the collectives was under way.
bool seen(const Events& events, const Hidden& hidden) {
  const Events collectives = named(events, hidden.collective, "tp");
  const Events pieces = named(events, hidden.piece, "compute");
  return std::any_of(pieces.begin(), pieces.end(), [&](const TraceEvent& piece) {
    return std::any_of(collectives.begin(), collectives.end(), [&](const TraceEvent& other) { return meet(piece, other); });
  });
}

/// A product that waits for its collective inside hides nothing.
void expect_no_wait_inside(const Events& events, const Hidden& hidden) {
  const Events waits = named(events, "wait " + hidden.collective, "compute");
  const Events pieces = named(events, hidden.piece, "compute");
  EXPECT_FALSE(pieces.empty()) << hidden.piece;
  for (const TraceEvent& piece : pieces) {
    EXPECT_TRUE(std::none_of(waits.begin(), waits.end(), [&](const TraceEvent& wait) { return meet(piece, wait); }))
        << hidden.piece << ", " << hidden.collective;
  }
}

/// That each pair is seen at once on a rank. Not in each run: on a busy machine the thread that carries a collective may get its
/// core late. Where a collective is waited for at once, no number of runs would show it (see PlainRegion).
void expect_overlap(bool sequence_parallel, const std::vector<Hidden>& pairs) {
  constexpr int most_runs = 20;
  std::vector<Hidden> missing = pairs;
  for (int run = 0; run < most_runs && !missing.empty(); run++) {
    for (const Events& events : traces(sequence_parallel, true)) {
      for (const Hidden& hidden : pairs) expect_no_wait_inside(events, hidden);
      std::erase_if(missing, [&](const Hidden& hidden) { return seen(events, hidden); });
    }
  }
  for (const Hidden& hidden : missing) ADD_FAILURE() << hidden.piece << " never ran beside " << hidden.collective;
}

TEST(OverlappedRegion, SumsOfOneHalfRunBesideTheOther) {
  expect_overlap(false, {{"second half", "all_reduce"}, {"weight gradient", "all_reduce"}});
}

TEST(OverlappedRegion, GathersAndScattersRunBesideProducts) {
  expect_overlap(true, {{"own rows", "all_gather"},
                        {"first half", "all_gather"},
                        {"second half", "reduce_scatter"},
                        {"input gradient", "all_gather"},
                        {"weight gradient", "reduce_scatter"}});
}

// The wait for the first half of a sum comes after the second half's product, in each pair of halves.
TEST(OverlappedRegion, WaitsForASumOnlyWhenTheOtherHalfIsComputed) {
  for (const Events& events : traces(false, true)) {
    const Events first = named(events, "first half", "compute"),
                 second = named(events, "second half", "compute");
    const Events waits = named(events, "wait all_reduce", "compute");
    ASSERT_EQ(first.size(), second.size());
    for (std::size_t i = 0; i < first.size(); i++) {
      const bool early = std::any_of(waits.begin(), waits.end(), [&](const TraceEvent& wait) {
        return wait.begin >= first[i].end && wait.begin < second[i].end;
      });
      EXPECT_FALSE(early) << "pair " << i;
    }
  }
}

// So that the tests above can fail: without it there are no pieces, and every collective is waited for where it stands.
TEST(PlainRegion, ComputesNothingWhileACollectiveIsUnderWay) {
  for (const bool sequence_parallel : {false, true}) {
    for (const Events& events : traces(sequence_parallel, false)) {
      for (const char* piece :
           {"own rows", "first half", "second half", "input gradient", "weight gradient"}) {
        EXPECT_TRUE(named(events, piece, "compute").empty()) << piece;
      }
      for (const char* collective : {"all_reduce", "all_gather", "reduce_scatter"}) {
        const Events waits = named(events, std::string("wait ") + collective, "compute");
        for (const TraceEvent& span : named(events, collective, "tp")) {
          EXPECT_TRUE(std::any_of(waits.begin(), waits.end(), [&](const TraceEvent& wait) {
            return wait.begin <= span.begin && span.end <= wait.end;
          })) << collective;
        }
      }
    }
  }
}

}  // namespace
}  // namespace escalera
