// The log, metrics, trace and watchfulness of a run.
#include "common/train/session.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/comm/launch.h"
#include "common/train/text_table.h"
#include "common/train/trace_file.h"
#include "tests/support/refusal.h"

namespace escalera {
namespace {

using Json = nlohmann::json;

TrainOptions options_for(int ranks, Index steps = 3) {
  TrainOptions options;
  options.ranks = ranks;
  options.steps = steps;
  options.micro_batch_size = 2;
  options.seq_length = 24;
  validate(options, ranks, ranks);
  return options;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Runs a session of `ranks` ranks in which each step sums one number, and returns what it printed.
std::string run_session(const TrainOptions& options, int ranks,
                        const std::function<void(int rank, Index step)>& in_step = {}) {
  testing::internal::CaptureStdout();
  const int code = launch({CommKind::threads, ranks}, [&](Communicator& world) {
    HostDevice device;
    const Tensor weights =
        device.zeros(1, 1000 * (world.rank() + 1), DType::float32, MemoryCategory::parameters);
    Trace trace;
    world.set_trace(&trace);
    Session session(world, options, device, trace);
    session.start({{"chapter", "its own row"}});
    for (Index step = 1; session.running(step); ++step) {
      TraceSpan span(&trace, "compute", "forward \"quoted\"");
      world.all_reduce(weights.slice_flat(0, 1000));
      if (in_step) in_step(world.rank(), step);
      session.end_step({step, 1.5, 0.25, 1e-3});
      if (step == 2) session.validation(step, 1.75, 48);
    }
    session.finish();
    if (session.interrupted()) session.print("interrupted");
  });
  EXPECT_EQ(code, 0);
  return testing::internal::GetCapturedStdout();
}

TEST(LogLine, HasTheUsualForm) {
  EXPECT_EQ(log_line({12, 2.34561, 1.2341, 3e-4}, 12345, 4, -1, -1, 12.34e6),
            "step 12 | loss 2.3456 | grad norm 1.234 | lr 3.00e-04 | tokens/s 12.3K | tokens/s/rank 3.09K | "
            "MFU - | "
            "memory 12.3 MB");
  EXPECT_NE(log_line({1, 2, 1, 1}, 10, 1, 0.432, 0.4, 0).find("| MFU 43.2% (40.0% causal) |"),
            std::string::npos);
}

TEST(Numbers, AreShortForPeople) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1000), "1.00K");
  EXPECT_EQ(human_count(12345), "12.3K");
  EXPECT_EQ(human_count(999600), "1.00M");
  EXPECT_EQ(human_bytes(134515008.0 * 4), "538 MB");
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(123), "123");
  EXPECT_EQ(grouped(1234), "1,234");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(human_time(7), "0:07");
  EXPECT_EQ(human_time(3723), "1:02:03");
}

TEST(Session, PrintsConfigurationThenOneLinePerStep) {
  const std::string text = run_session(options_for(2), 2);
  EXPECT_TRUE(mentions(
      text, {"configuration", "tiny: 4 layers", "2 per micro-batch x 1 micro-batch x 2 data-parallel",
             "tokens per step  4 sequences x 24 = 96", "its own row"}));
  std::vector<std::string> steps;
  for (const std::string& line : lines_of(text)) {
    if (line.starts_with("step ")) steps.push_back(line);
  }
  ASSERT_EQ(steps.size(), 4U) << text;  // one line for two ranks, plus the validation
  EXPECT_TRUE(steps[0].starts_with("step 1 | loss 1.5000 | grad norm 0.250 | lr 1.00e-03 | tokens/s "));
  EXPECT_EQ(steps[2], "step 2 | validation loss 1.7500 | over 48 tokens");
  EXPECT_TRUE(steps[3].ends_with("| memory 8.00 KB")) << "that of the fullest rank: " << steps[3];
  EXPECT_EQ(text.find('\r'), std::string::npos) << "progress is for terminals";
}

TEST(Session, LogEveryKeepsFirstAndLastStep) {
  TrainOptions options = options_for(1, 10);
  options.log_every = 4;
  const std::string text = run_session(options, 1);
  for (Index step = 1; step <= 10; ++step) {
    const bool expected = step == 1 || step % 4 == 0 || step == 10;
    EXPECT_EQ(text.find(fmt::format("step {} | loss", step)) != std::string::npos, expected) << step;
  }
}

TEST(Session, DrawsProgressOnATerminal) {
  setenv("ESCALERA_TERMINAL", "1", 1);
  const std::string text = run_session(options_for(1, 4), 1);
  unsetenv("ESCALERA_TERMINAL");
  EXPECT_TRUE(mentions(text, {"] 1/4, 0:00 left", "] 3/4, 0:00 left"}));
  EXPECT_EQ(text.find("] 4/4"), std::string::npos);
}

TEST(Session, StopAfterEndsEarlier) {
  TrainOptions options = options_for(1, 10);
  options.stop_after = 2;
  const std::string text = run_session(options, 1);
  EXPECT_TRUE(mentions(text, {"2 of 10", "step 2 |"}));
  EXPECT_EQ(text.find("step 3 |"), std::string::npos);
}

TEST(Session, MetricsAreJsonLines) {
  const TemporaryDirectory folder;
  TrainOptions options = options_for(2);
  options.metrics = folder / "metrics.jsonl";
  run_session(options, 2);
  const std::vector<std::string> lines = lines_of(folder.read("metrics.jsonl"));
  ASSERT_EQ(lines.size(), 4U);
  const Json first = Json::parse(lines[0]), third = Json::parse(lines[3]);
  EXPECT_EQ(first["step"], 1);
  EXPECT_EQ(first["loss"], 1.5);
  EXPECT_EQ(first["grad_norm"], 0.25);
  EXPECT_EQ(first["learning_rate"], 1e-3);
  EXPECT_EQ(first["tokens"], 96);
  EXPECT_EQ(third["tokens"], 3 * 96);
  EXPECT_TRUE(first["mfu"].is_null());
  EXPECT_GT(first["tokens_per_second"].get<double>(), 0);
  EXPECT_GT(first["step_ms"].get<double>(), 0);
  EXPECT_EQ(first["memory"]["parameters"], 8000);
  EXPECT_EQ(Json::parse(lines[2])["validation_loss"], 1.75);
}

TEST(Session, TrafficAndWaitingInTheMetricsAreThoseOfTheStepOnAllRanks) {
  const TemporaryDirectory folder;
  TrainOptions options = options_for(2);
  options.metrics = folder / "metrics.jsonl";
  testing::internal::CaptureStdout();
  launch({CommKind::threads, 2}, [&](Communicator& world) {
    HostDevice device;
    const Tensor numbers = device.zeros(1, 1000, DType::float32, MemoryCategory::parameters);
    Trace trace;
    const auto group = world.split(0, world.rank(), "dp");
    Session session(world, options, device, trace);
    session.watch(*group);
    session.start();
    for (Index step = 1; session.running(step); ++step) {
      group->all_reduce(numbers);
      session.end_step({step, 1, 1, 1});
    }
    session.finish();
    EXPECT_GT(group->seconds_waited(), 0.0);
  });
  EXPECT_TRUE(mentions(testing::internal::GetCapturedStdout(), {"communication exposed: ", "ms per step and rank"}));
  for (const std::string& line : lines_of(folder.read("metrics.jsonl"))) {
    EXPECT_EQ(Json::parse(line)["traffic"]["all_reduce"], 2 * 1 * 4000) << "2 (d - 1) n";
    EXPECT_GT(Json::parse(line)["traffic"]["control"].get<Index>(), 0);
    EXPECT_GT(Json::parse(line)["exposed_ms"].get<double>(), 0.0);
  }
}

TEST(Session, ASignalEndsAllRanksAfterTheSameStep) {
  const std::string text = run_session(options_for(3, 100), 3, [](int rank, Index step) {
    if (rank == 1 && step == 2) std::raise(SIGTERM);
  });
  EXPECT_TRUE(mentions(text, {"step 2 | loss", "stopped by a signal after step 2 of 100", "interrupted"}));
  EXPECT_EQ(text.find("step 3 |"), std::string::npos);
}

TEST(Session, TheTraceHasARowPerRankAndStream) {
  const TemporaryDirectory folder;
  TrainOptions options = options_for(2);
  options.trace = folder / "trace.json";
  run_session(options, 2);
  const Json trace = Json::parse(folder.read("trace.json"));
  int processes = 0, computing = 0, reducing = 0;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "M" && event["name"] == "process_name") ++processes;
    if (event["ph"] == "M" && event["name"] == "thread_name" && event["args"]["name"] == "compute")
      ++computing;
    if (event["ph"] == "M" && event["name"] == "thread_name" && event["args"]["name"] == "world") ++reducing;
    if (event["ph"] != "X") continue;
    EXPECT_GE(event["ts"].get<double>(), 0);
    EXPECT_GE(event["dur"].get<double>(), 0);
  }
  EXPECT_EQ(processes, 2);
  EXPECT_EQ(computing, 2);
  EXPECT_EQ(reducing, 2);
}

TEST(TraceJson, PutsTimesInMicrosecondsFromTheFirstEvent) {
  const Json trace =
      Json::parse(trace_json({{0, {{"forward \"a\"\n", "compute", 5000, 7500, 0}}},
                              {1, {{"all_reduce", "dp", 6000, 6001, 42}, {"b", "compute", 7000, 7000, 0}}}}));
  std::vector<Json> spans;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") spans.push_back(event);
  }
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0]["name"], "forward \"a\"\n");
  EXPECT_EQ(spans[0]["ts"], 0.0);
  EXPECT_EQ(spans[0]["dur"], 2.5);
  EXPECT_EQ(spans[1]["pid"], 1);
  EXPECT_EQ(spans[1]["ts"], 1.0);
  EXPECT_EQ(spans[1]["args"]["bytes"], 42);
  EXPECT_NE(spans[1]["tid"], spans[2]["tid"]) << "two streams are two rows";
  EXPECT_TRUE(Json::parse(trace_json({{0, {}}}))["traceEvents"].is_array());
}

/// What check_finite() throws on each of three ranks whose shares are `locals`: "Error: ..." or "PeerError: ...".
std::vector<std::string> verdicts(double global, const std::vector<double>& locals) {
  std::vector<std::string> result(locals.size());
  launch({CommKind::threads, static_cast<int>(locals.size())}, [&](Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    try {
      check_finite(world, 7, "loss", global, locals[rank]);
    } catch (const PeerError& error) {
      result[rank] = std::string("PeerError: ") + error.what();
    } catch (const Error& error) {
      result[rank] = std::string("Error: ") + error.what();
    }
  });
  return result;
}

TEST(CheckFinite, NamesStepAndRank) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(),
                   inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(verdicts(1.0, {1, 2, 3}), std::vector<std::string>(3));
  std::vector<std::string> said = verdicts(nan, {1, nan, 3});
  EXPECT_TRUE(said[0].starts_with("PeerError")) << said[0];
  EXPECT_TRUE(mentions(said[1], {"Error: step 7: the loss is nan", "began on rank 1", "own share is nan"}));
  EXPECT_TRUE(said[2].starts_with("PeerError"));
  said = verdicts(inf, {1, 2, inf});
  EXPECT_TRUE(mentions(said[2], {"Error: step 7", "rank 2", "inf"}));
  said = verdicts(nan, {nan, 2, -inf});
  EXPECT_TRUE(mentions(said[0], {"ranks 0, 2"}));
  said = verdicts(inf, {1e308, 1e308, 1});
  EXPECT_TRUE(mentions(said[0], {"Error: step 7", "every rank's own share is finite"}));
}

TEST(CheckFinite, EndsTheRunWithExitCodeOne) {
  testing::internal::CaptureStderr();
  const int code = launch({CommKind::threads, 2}, [](Communicator& world) {
    check_finite(world, 3, "gradient norm", std::nan(""), world.rank() == 1 ? std::nan("") : 0.0);
  });
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 1);
  EXPECT_TRUE(mentions(text, {"step 3", "rank 1"}));
  EXPECT_EQ(text.find("step 3"), text.rfind("step 3")) << "said once: " << text;
}

TEST(Session, WithoutASignalAllStepsAreRun) {
  const std::string text = run_session(options_for(2, 4), 2);
  EXPECT_TRUE(mentions(text, {"step 4 |", "4 steps in"}));
  EXPECT_EQ(text.find("stopped by a signal"), std::string::npos);
}

TEST(TraceJson, AnUnescapedNameIsSeen) {
  // Planted fault: the same file with the quotes of a span's name as they are is no JSON, and the parser above says so.
  std::string text = trace_json({{0, {{"a \"b\"", "compute", 0, 1, 0}}}});
  EXPECT_TRUE(Json::accept(text));
  for (std::size_t at; (at = text.find("\\\"")) != std::string::npos;) text.erase(at, 1);
  EXPECT_FALSE(Json::accept(text));
}

}  // namespace
}  // namespace escalera
