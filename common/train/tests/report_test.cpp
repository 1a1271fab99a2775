// The tables of measured beside predicted numbers.
#include "common/train/report.h"

#include <gtest/gtest.h>

#include <sstream>

#include "common/comm/launch.h"
#include "common/train/formulas.h"
#include "tests/support/refusal.h"

namespace escalera {
namespace {

/// The cells of the row that begins with `name`, split at two or more blanks.
std::vector<std::string> row(const std::string& table, const std::string& name) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  " + name)) continue;
    std::vector<std::string> cells;
    for (std::size_t at = 2; at < line.size();) {
      const std::size_t end = std::min(line.find("  ", at), line.size());
      cells.push_back(line.substr(at, end - at));
      at = std::min(line.find_first_not_of(' ', end), line.size());
    }
    return cells;
  }
  return {};
}

using Cells = std::vector<std::string>;

TEST(Report, DifferencesAreNeverRoundedAway) {
  EXPECT_EQ(difference(100, 100), "=");
  EXPECT_EQ(difference(0, 0), "=");
  EXPECT_EQ(difference(101, 100), "+1.0 %");
  EXPECT_EQ(difference(50, 100), "-50.0 %");
  EXPECT_EQ(difference(100001, 100000), "+<0.1 %");
  EXPECT_EQ(difference(99999, 100000), "-<0.1 %");
  EXPECT_EQ(difference(5, 0), "not predicted");
}

TEST(Report, MemoryIsLeastMostAndSumOverRanks) {
  std::string text[2];
  launch({CommKind::threads, 2}, [&](Communicator& world) {
    MemoryLedger ledger;
    ledger.add(MemoryCategory::parameters, 4000);
    ledger.add(MemoryCategory::activations, 1000 * (world.rank() + 1));
    ledger.remove(MemoryCategory::activations, 500);
    MemoryPrediction predicted;
    predicted[MemoryCategory::parameters] = 4000;
    predicted[MemoryCategory::activations] = 1000;
    text[world.rank()] = memory_report(world, ledger, predicted);
  });
  EXPECT_EQ(text[0], text[1]);
  EXPECT_EQ(row(text[0], "parameters"), (Cells{"parameters", "4,000", "4,000", "8,000", "8,000", "="}));
  EXPECT_EQ(row(text[0], "activations"),
            (Cells{"activations", "1,000", "2,000", "3,000", "2,000", "+50.0 %"}));
  EXPECT_EQ(row(text[0], "workspace"), (Cells{"workspace", "0", "0", "0"}));
  EXPECT_EQ(row(text[0], "all at once"), (Cells{"all at once", "5,000", "6,000", "11,000"}));
}

TEST(Report, TrafficIsTheSumOverRanksWithControlApart) {
  std::string text;
  launch({CommKind::threads, 3}, [&](Communicator& world) {
    HostDevice device;
    const Tensor numbers = device.zeros(1, 600, DType::float32, MemoryCategory::parameters);
    const auto group = world.split(0, world.rank(), "dp");
    group->all_reduce(numbers);
    world.all_reduce(numbers);
    world.sum(1.0);
    const Communicator* groups[] = {&world, group.get()};
    TrafficPrediction predicted;
    predicted[Operation::all_reduce] = 2 * (2 * 2 * 2400);
    const std::string mine = traffic_report(world, groups, predicted);
    if (world.rank() == 0) text = mine;
  });
  EXPECT_EQ(row(text, "all_reduce"), (Cells{"all_reduce", "6", "19,200", "19,200", "="}));
  EXPECT_FALSE(row(text, "control messages").empty());
  EXPECT_TRUE(row(text, "reduce_scatter").empty()) << "neither used nor predicted";
}

TEST(Report, AReductionTooManyIsSeen) {
  // Planted fault: gradients are reduced twice in a step that the formula gives one reduction.
  std::string text;
  launch({CommKind::threads, 2}, [&](Communicator& world) {
    HostDevice device;
    const Tensor numbers = device.zeros(1, 1000, DType::float32, MemoryCategory::parameters);
    world.all_reduce(numbers);
    world.all_reduce(numbers);
    const Communicator* groups[] = {&world};
    TrafficPrediction predicted;
    predicted[Operation::all_reduce] = 2 * 4000;
    const std::string mine = traffic_report(world, groups, predicted);
    if (world.rank() == 0) text = mine;
  });
  EXPECT_EQ(row(text, "all_reduce").back(), "+100.0 %");
}

TEST(Report, ARankThatHoldsTheWholeModelIsPredictedFromOptions) {
  TrainOptions options;
  options.micro_batch_size = 2;
  options.seq_length = 10;
  validate(options, 1, 1);
  const MemoryPrediction predicted = predict_memory(options);
  EXPECT_EQ(predicted[MemoryCategory::parameters], 4 * parameter_count(options.model));
  EXPECT_EQ(predicted[MemoryCategory::optimizer], 8 * parameter_count(options.model));
  EXPECT_EQ(predicted[MemoryCategory::activations],
            activation_memory(options.model, DType::float32, Recompute::none, {20, 20}).peak());
  EXPECT_FALSE(predicted[MemoryCategory::workspace].has_value());
}

}  // namespace
}  // namespace escalera
