// Learning-rate schedules against written-out lists.
#include "common/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace escalera {
namespace {

std::vector<double> rates(const LearningRateSchedule& schedule) {
  schedule.check();
  std::vector<double> list;
  for (Index step = 1; step <= schedule.total_steps; ++step) list.push_back(schedule.at(step));
  return list;
}

bool equal(const std::vector<double>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return false;
  for (std::size_t i = 0; i < got.size(); ++i) {
    // A few roundings of float64, of numbers up to 1.
    if (!(std::abs(got[i] - expected[i]) <= 1e-15)) return false;
  }
  return true;
}

LearningRateSchedule schedule_of(ScheduleKind kind, double minimum, Index warmup, Index total,
                                 std::optional<Index> decay) {
  return {kind, 1.0, minimum, warmup, total, decay};
}

// C28
TEST(Schedule, WarmUpStableDecayGivesTheDocumentedList) {
  const auto list = rates(schedule_of(ScheduleKind::wsd, 0, 4, 10, 4));
  EXPECT_TRUE(equal(list, {0.25, 0.5, 0.75, 1, 1, 1, 0.75, 0.5, 0.25, 0}));
  EXPECT_TRUE(equal(rates(schedule_of(ScheduleKind::wsd, 0.2, 4, 10, 4)),
                    {0.25, 0.5, 0.75, 1, 1, 1, 0.8, 0.6, 0.4, 0.2}));
}

// The classic fault, planted: steps counted from 0, so that the first one learns nothing and the peak comes
// late.
TEST(Schedule, TheListShowsAnOffsetByOne) {
  const auto schedule = schedule_of(ScheduleKind::wsd, 0, 4, 10, 4);
  std::vector<double> late = {0};
  for (Index step = 1; step < 10; ++step) late.push_back(schedule.at(step));
  EXPECT_FALSE(equal(late, {0.25, 0.5, 0.75, 1, 1, 1, 0.75, 0.5, 0.25, 0}));
}

TEST(Schedule, CosineFallsFromThePeakToTheMinimumAtTheLastStep) {
  const double r = std::sqrt(0.5);
  EXPECT_TRUE(equal(rates(schedule_of(ScheduleKind::cosine, 0, 2, 6, std::nullopt)),
                    {0.5, 1, (1 + r) / 2, 0.5, (1 - r) / 2, 0}));
  EXPECT_TRUE(equal(rates(schedule_of(ScheduleKind::cosine, 0.5, 0, 4, 2)), {0.75, 0.5, 0.5, 0.5}));
  EXPECT_TRUE(equal(rates(schedule_of(ScheduleKind::cosine, 0, 0, 2, 4)), {(1 + r) / 2, 0.5}));
}

TEST(Schedule, ConstantStaysAtThePeakAfterTheWarmUp) {
  EXPECT_TRUE(equal(rates(schedule_of(ScheduleKind::constant, 0, 0, 3, std::nullopt)), {1, 1, 1}));
  EXPECT_TRUE(equal(rates(schedule_of(ScheduleKind::constant, 0, 2, 4, 3)), {0.5, 1, 1, 1}));
}

TEST(Schedule, EveryKindStartsAboveZeroAndReachesThePeak) {
  for (const auto kind : {ScheduleKind::constant, ScheduleKind::cosine, ScheduleKind::wsd}) {
    for (const Index warmup : {1, 3, 7}) {
      const auto list = rates(schedule_of(kind, 0.1, warmup, 13, std::nullopt));
      EXPECT_GT(list[0], 0) << to_string(kind);
      EXPECT_EQ(list[static_cast<std::size_t>(warmup) - 1], 1) << to_string(kind);
      for (const double rate : list) EXPECT_LE(rate, 1) << to_string(kind);
    }
  }
}

TEST(Schedule, WithoutDecayStepsWsdDecaysOverTheLastFifth) {
  EXPECT_TRUE(
      equal(rates(schedule_of(ScheduleKind::wsd, 0, 0, 10, std::nullopt)), {1, 1, 1, 1, 1, 1, 1, 1, 0.5, 0}));
  // The warm-up leaves one step of the fifth.
  EXPECT_EQ(rates(schedule_of(ScheduleKind::wsd, 0, 9, 10, std::nullopt)).back(), 0);
  EXPECT_EQ(schedule_of(ScheduleKind::wsd, 0, 9, 10, std::nullopt).decay(), 1);
}

TEST(Schedule, NoDecayStaysAtThePeak) {
  EXPECT_TRUE(equal(rates(schedule_of(ScheduleKind::wsd, 0, 2, 4, 0)), {0.5, 1, 1, 1}));
  EXPECT_TRUE(equal(rates(schedule_of(ScheduleKind::cosine, 0, 2, 4, 0)), {0.5, 1, 1, 1}));
}

TEST(Schedule, AWarmUpLongerThanTheRunIsCutOff) {
  for (const auto kind : {ScheduleKind::constant, ScheduleKind::cosine, ScheduleKind::wsd}) {
    EXPECT_TRUE(equal(rates(schedule_of(kind, 0, 8, 3, std::nullopt)), {0.125, 0.25, 0.375}))
        << to_string(kind);
  }
}

TEST(Schedule, StaysAfterTheLastStep) {
  EXPECT_EQ(schedule_of(ScheduleKind::cosine, 0.25, 2, 6, std::nullopt).at(100), 0.25);
  EXPECT_EQ(schedule_of(ScheduleKind::wsd, 0.25, 2, 6, 2).at(7), 0.25);
  EXPECT_THROW(schedule_of(ScheduleKind::wsd, 0.25, 2, 6, 2).at(0), Error);
}

TEST(Schedule, RefusesNumbersThatClashAndNamesThem) {
  const auto message = [](const LearningRateSchedule& schedule) -> std::string {
    try {
      schedule.check();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(
      message(schedule_of(ScheduleKind::wsd, 0, 8, 10, 4)),
      "--warmup-steps 8 and --decay-steps 4 do not fit into --steps 10; a decay of at most 2 would work");
  EXPECT_EQ(message(schedule_of(ScheduleKind::cosine, 0, 8, 10, 4)), "");
  EXPECT_EQ(message(schedule_of(ScheduleKind::cosine, 2, 0, 10, 4)),
            "--min-learning-rate 2 is above --learning-rate 1");
  EXPECT_NE(message(schedule_of(ScheduleKind::cosine, -1, 0, 10, 4)), "");
  EXPECT_NE(message(schedule_of(ScheduleKind::cosine, 0, -1, 10, 4)), "");
  EXPECT_NE(message(schedule_of(ScheduleKind::cosine, 0, 0, 0, 4)), "");
  EXPECT_NE(message(schedule_of(ScheduleKind::wsd, 0, 0, 10, -1)), "");
  EXPECT_NE(message({ScheduleKind::constant, std::numeric_limits<double>::quiet_NaN(), 0, 0, 1, {}}), "");
}

}  // namespace
}  // namespace escalera
