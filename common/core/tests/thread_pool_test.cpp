#include "common/core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace escalera {
namespace {

TEST(ThreadPool, every_thread_runs_each_job_once) {
  ThreadPool pool(4);
  std::vector<int> calls(4);
  for (int job = 0; job < 2000; job++) pool.run([&](int thread) { calls[static_cast<std::size_t>(thread)]++; });
  EXPECT_EQ(calls, std::vector<int>(4, 2000));
}

TEST(ThreadPool, threads_that_fell_asleep_wake_up) {
  ThreadPool pool(3);
  for (int job = 0; job < 5; job++) {
    std::atomic<int> calls = 0;
    pool.run([&](int) { calls++; });
    EXPECT_EQ(calls, 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than they spin or yield
  }
}

TEST(ThreadPool, the_caller_sleeps_through_a_long_job) {
  ThreadPool pool(2);
  bool done = false;
  pool.run([&](int thread) {
    if (thread == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    done = true;
  });
  EXPECT_TRUE(done);
}

TEST(ThreadPool, ranges_cover_everything_once_and_are_always_the_same) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (const Index count : {0, 1, 2, 5, 100, 1001}) {
      std::vector<int> owner(static_cast<std::size_t>(count), -1), again = owner;
      for (std::vector<int>* list : {&owner, &again}) {
        pool.for_ranges(count, 100000, [&](Index begin, Index end, int thread) {
          ASSERT_LT(begin, end);
          for (Index i = begin; i < end; i++) {
            EXPECT_EQ((*list)[static_cast<std::size_t>(i)], -1);
            (*list)[static_cast<std::size_t>(i)] = thread;
          }
        });
      }
      EXPECT_EQ(owner, again);
      for (const int thread : owner) EXPECT_GE(thread, 0);
    }
  }
}

TEST(ThreadPool, small_jobs_stay_with_the_caller) {
  ThreadPool pool(2);
  const auto caller = std::this_thread::get_id();
  pool.for_ranges(10, 1, [&](Index begin, Index end, int) {
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 10);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

TEST(ThreadPool, an_exception_reaches_the_caller_and_the_pool_lives_on) {
  ThreadPool pool(3);
  for (const int thrower : {0, 2}) {
    EXPECT_THROW(pool.run([&](int thread) {
      if (thread == thrower) throw std::runtime_error("on purpose");
    }),
                 std::runtime_error);
    std::atomic<int> calls = 0;
    pool.run([&](int) { calls++; });
    EXPECT_EQ(calls, 3);
  }
}

TEST(ThreadPool, needs_a_thread) { EXPECT_THROW(ThreadPool(0), Error); }

}  // namespace
}  // namespace escalera
