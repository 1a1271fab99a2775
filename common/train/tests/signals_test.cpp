// What the first and the second signal do.
#include "common/train/signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "tests/support/temporary_directory.h"

namespace escalera {
namespace {

TEST(Signals, TheFirstSetsAFlagOnly) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    SignalWatch watch;
    EXPECT_FALSE(watch.requested());
    std::raise(signal);
    EXPECT_TRUE(watch.requested());
  }
  SignalWatch fresh;
  EXPECT_FALSE(fresh.requested()) << "a new run starts without the old one's signal";
}

std::atomic<int> calls{0};
std::atomic<bool> interrupted_a_computing_thread{false};
thread_local bool computes = false;

TEST(Signals, ThreadsThatComputeAreNotInterrupted) {
  struct sigaction action = {}, previous = {};
  action.sa_handler = [](int) {
    interrupted_a_computing_thread = interrupted_a_computing_thread || computes;
    calls++;
  };
  sigaction(SIGUSR1, &action, &previous);
  {
    const SignalThread signals;
    std::atomic<bool> over{false};
    std::thread other([&] {
      computes = true;
      while (!over) std::this_thread::yield();
    });
    computes = true;
    for (int i = 1; i <= 100; i++) {
      ASSERT_EQ(kill(getpid(), SIGUSR1), 0);
      while (calls < i) std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
    over = true;
    other.join();
    EXPECT_FALSE(interrupted_a_computing_thread);
  }
  // Without that thread, it is this one that is interrupted: the test can fail.
  ASSERT_EQ(kill(getpid(), SIGUSR1), 0);
  while (calls < 101) std::this_thread::sleep_for(std::chrono::microseconds(10));
  EXPECT_TRUE(interrupted_a_computing_thread);
  computes = false;
  sigaction(SIGUSR1, &previous, nullptr);
}

TEST(Signals, RanksOfOneProcessSeeTheSame) {
  SignalWatch first;
  {
    SignalWatch second;
    std::raise(SIGINT);
    EXPECT_TRUE(second.requested());
  }
  EXPECT_TRUE(first.requested());
}

TEST(Signals, HandlersGoBackToWhatTheyWere) {
  struct sigaction before = {}, during = {}, after = {};
  sigaction(SIGTERM, nullptr, &before);
  {
    SignalWatch watch;
    sigaction(SIGTERM, nullptr, &during);
  }
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_NE(during.sa_handler, before.sa_handler);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
}

/// The wait status of a child that raises SIGINT `times` times under a watch, with `file` guarded.
int status_after_signals(int times, const std::string& file) {
  const pid_t child = fork();
  if (child == 0) {
    SignalWatch watch;
    CleanupOnSignal guard(file);
    for (int i = 0; i < times; ++i) std::raise(SIGINT);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(Signals, TheSecondEndsTheProcessAndLeavesNothing) {
  const TemporaryDirectory folder;
  const std::string file = folder.write("half-written", "x");
  const int status = status_after_signals(2, file);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(Signals, TheFirstLeavesFilesAlone) {
  // Also the check on the test above: a handler that always ended the process, or always removed files, fails here.
  const TemporaryDirectory folder;
  const std::string file = folder.write("half-written", "x");
  const int status = status_after_signals(1, file);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_TRUE(std::filesystem::exists(file));
}

TEST(Signals, AFileThatIsFinishedIsGuardedNoMore) {
  const TemporaryDirectory folder;
  const std::string file = folder.write("finished", "x");
  const pid_t child = fork();
  if (child == 0) {
    SignalWatch watch;
    { CleanupOnSignal guard(file); }
    std::raise(SIGTERM);
    std::raise(SIGTERM);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace escalera
