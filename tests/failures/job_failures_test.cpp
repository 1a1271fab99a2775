// C32: what becomes of a job when a rank is killed or a user interrupts it. Nothing else runs beside these tests.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "tests/support/program_run.h"

namespace escalera {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::set<std::string> entries(const std::string& folder) {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    names.insert(entry.path().filename());
  return names;
}

class JobFailure : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
    std::filesystem::create_directory(temporary_);
  }

  /// A run that would take hours. Its command line has this test's own folder in it, by which its processes are known.
  Words endless(const Words& start, const Words& more = {}) const {
    return start + small_model(text_) + Words{"--steps", "100000000", "--log-every", "1"} + more;
  }
  /// Temporary files of Open MPI and of ours go where the test can count them.
  ProcessOptions options() const { return {{{"TMPDIR", temporary_}}, 90}; }

  std::vector<pid_t> ranks_of_the_job() const {
    std::vector<pid_t> ranks;
    for (const pid_t id : processes_mentioning(text_)) {
      if (!environment_of(id, "OMPI_COMM_WORLD_RANK").empty()) ranks.push_back(id);
    }
    return ranks;
  }

  /// Waits until no process of the job is left; the time that took, or more than `patience`.
  double wait_until_gone(double patience) const {
    const auto start = Clock::now();
    while (!processes_mentioning(text_).empty() && seconds_since(start) <= patience) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return seconds_since(start);
  }

  /// What `before` did not have, after a moment in which other jobs of this machine may clean up.
  static std::set<std::string> left_behind(const std::string& folder, const std::set<std::string>& before) {
    std::set<std::string> left;
    for (int attempt = 0; attempt < 50; attempt++) {
      left.clear();
      for (const std::string& name : entries(folder)) {
        if (!before.contains(name)) left.insert(name);
      }
      if (left.empty()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return left;
  }
  void expect_no_trace_left(const std::set<std::string>& shared_before) const {
    EXPECT_EQ(left_behind("/dev/shm", shared_before), std::set<std::string>{});
    for (const auto& entry : std::filesystem::recursive_directory_iterator(temporary_)) {
      EXPECT_TRUE(entry.is_directory()) << "left behind: " << entry.path();
    }
  }

  TemporaryDirectory folder_;
  std::string text_ = folder_.write("text.txt", repetitive_text(3000));
  std::string temporary_ = folder_ / "tmp";
};

TEST_F(JobFailure, AKilledRankEndsTheJobAndIsNamed) {
  Process job(endless(on_mpi(4)), options());
  ASSERT_TRUE(job.wait_for_output("\nstep 20 |")) << job.wait().err;
  pid_t victim = -1;
  for (const pid_t id : ranks_of_the_job()) {
    if (environment_of(id, "OMPI_COMM_WORLD_RANK") == "2") victim = id;
  }
  ASSERT_GT(victim, 0);
  const auto start = Clock::now();
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  const ProcessResult result = job.wait();
  EXPECT_LT(seconds_since(start) + wait_until_gone(30), 30);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_FALSE(result.timed_out);
  // The survivors say who died and what it was doing: "rank 2 (pid 1234 on node) died in phase "step 21, backward"".
  EXPECT_TRUE(mentions(result.err, {fmt::format("rank 2 (pid {}", victim), "died in phase \"step "}));
}

TEST_F(JobFailure, ARankKilledBeforeTheFirstStepEndsTheJobToo) {
  Process job(endless(on_mpi(4)), options());
  // As soon as one rank is there, while the others still start.
  std::vector<pid_t> ranks;
  while (ranks.empty()) ranks = ranks_of_the_job();
  const auto start = Clock::now();
  kill(ranks.front(), SIGKILL);
  const ProcessResult result = job.wait();
  EXPECT_LT(seconds_since(start) + wait_until_gone(30), 30);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_FALSE(result.timed_out);
}

TEST_F(JobFailure, AnInterruptFinishesTheStepAndLeavesNothing) {
  // Matrices as large as in a real run: a handler that interrupts a rank inside oneDNN's kernels for them corrupts the heap
  // (see SignalThread), and the run ends in a crash instead.
  const Words large = {"--model",
                       "tiny",
                       "--num-hidden-layers",
                       "4",
                       "--hidden-size",
                       "128",
                       "--num-attention-heads",
                       "8",
                       "--num-key-value-heads",
                       "4",
                       "--intermediate-size",
                       "352",
                       "--seq-length",
                       "256",
                       "--micro-batch-size",
                       "2"};
  std::vector<Words> starts = {on_threads(4), on_mpi(4)};
  for (const Words& start : starts) {
    const auto shared_before = entries("/dev/shm");
    const std::string metrics = folder_ / "metrics.jsonl", model = folder_ / "model";
    Process job(endless(start, large) + Words{"--metrics", metrics, "--export", model}, options());
    ASSERT_TRUE(job.wait_for_output("\nstep 3 |"));
    const auto begin = Clock::now();
    job.signal(SIGINT);
    const ProcessResult result = job.wait();
    EXPECT_LT(seconds_since(begin) + wait_until_gone(30), 30);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto lines = metrics_of(metrics);
    ASSERT_FALSE(lines.empty());
    // It stops between two steps, says after which, and what was asked for at the end is there.
    EXPECT_TRUE(mentions(
        result.out, {fmt::format("stopped by a signal after step {} of", lines.back().at("step").get<int>()),
                     "memory, peak bytes"}));
    EXPECT_TRUE(std::filesystem::exists(model + "/model.safetensors"));
    std::filesystem::remove_all(model);
    expect_no_trace_left(shared_before);
  }
}

TEST_F(JobFailure, TwoInterruptsStopAtOnce) {
  const auto shared_before = entries("/dev/shm");
  Process job(endless(on_threads(4)), options());
  ASSERT_TRUE(job.wait_for_output("\nstep 2 |"));
  job.signal(SIGINT);
  job.signal(SIGTERM);  // another number: two of the same kind may become one
  const ProcessResult result = job.wait();
  EXPECT_FALSE(result.timed_out);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_LT(wait_until_gone(5), 5);
  expect_no_trace_left(shared_before);
}

TEST_F(JobFailure, TwoInterruptsStopProcessesToo) {
  Process job(endless(on_mpi(2)), options());
  ASSERT_TRUE(job.wait_for_output("\nstep 2 |"));
  const auto start = Clock::now();
  job.signal(SIGINT);
  job.signal(SIGTERM);
  const ProcessResult result = job.wait();
  EXPECT_FALSE(result.timed_out);
  EXPECT_LT(seconds_since(start) + wait_until_gone(30), 30);
}

TEST_F(JobFailure, TwoJobsAtOnceGiveTheLossesOfOneAtATime) {
  const auto words = [&](const std::string& name, const char* seed) {
    return on_mpi(2) + small_model(text_) +
           Words{"--steps", "30", "--seed", seed, "--metrics", folder_ / (name + ".jsonl")};
  };
  run_well(words("alone 1", "1"), options());
  run_well(words("alone 2", "2"), options());
  Process first(words("together 1", "1"), options()), second(words("together 2", "2"), options());
  EXPECT_EQ(first.wait().exit_code, 0);
  EXPECT_EQ(second.wait().exit_code, 0);
  for (const char* job : {"1", "2"}) {
    const auto together = losses_of(folder_ / fmt::format("together {}.jsonl", job));
    EXPECT_EQ(together.size(), 30U);
    EXPECT_EQ(together, losses_of(folder_ / fmt::format("alone {}.jsonl", job)));
  }
}

}  // namespace
}  // namespace escalera
