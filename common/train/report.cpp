#include "common/train/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/train/formulas.h"
#include "common/train/text_table.h"

namespace escalera {
namespace {

/// Every rank's row of numbers, on all ranks.
std::vector<std::vector<Index>> gather_numbers(Communicator& world, const std::vector<Index>& mine) {
  std::vector<std::vector<Index>> all;
  for (const std::string& text : world.gather_strings(nlohmann::json(mine).dump())) {
    all.push_back(nlohmann::json::parse(text).get<std::vector<Index>>());
  }
  return all;
}

}  // namespace

MemoryPrediction predict_memory(const TrainOptions& options) {
  const StaticMemory fixed = static_memory(options.model, options.dtype, options.optimizer);
  const Index rows = options.micro_batch_size.value() * options.seq_length;
  MemoryPrediction predicted;
  predicted[MemoryCategory::parameters] = fixed.parameters;
  predicted[MemoryCategory::gradients] = fixed.gradients;
  predicted[MemoryCategory::optimizer] = fixed.optimizer;
  predicted[MemoryCategory::activations] =
      activation_memory(options.model, options.dtype, options.recompute, {rows, rows}).peak();
  return predicted;
}

std::string difference(double measured, double predicted) {
  if (measured == predicted) return "=";
  if (predicted == 0.0) return "not predicted";
  const double percent = 100.0 * (measured - predicted) / predicted;
  // Never print a difference as none.
  if (std::abs(percent) < 0.05) return percent > 0 ? "+<0.1 %" : "-<0.1 %";
  return fmt::format("{:+.1f} %", percent);
}

std::string memory_report(Communicator& world, const MemoryLedger& ledger,
                          const MemoryPrediction& predicted) {
  std::vector<Index> mine;
  for (int i = 0; i < memory_category_count; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    mine.push_back(ledger.peak(category));
    mine.push_back(predicted[category].value_or(-1));
  }
  mine.push_back(ledger.peak_total());
  const auto all = gather_numbers(world, mine);

  TextTable table({"memory, peak bytes", "least rank", "most rank", "sum", "predicted sum", "difference"});
  const auto add_row = [&](std::string name, std::size_t slot, bool has_formula) {
    Index least = all.front()[slot], most = least, sum = 0, expected = 0;
    for (const std::vector<Index>& rank : all) {
      least = std::min(least, rank[slot]);
      most = std::max(most, rank[slot]);
      sum += rank[slot];
      if (has_formula) expected += rank[slot + 1];
    }
    table.add({std::move(name), grouped(least), grouped(most), grouped(sum),
               has_formula ? grouped(expected) : "",
               has_formula ? difference(static_cast<double>(sum), static_cast<double>(expected)) : ""});
  };
  for (int i = 0; i < memory_category_count; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    add_row(std::string(to_string(category)), static_cast<std::size_t>(2 * i),
            predicted[category].has_value());
  }
  // Categories peak at different moments, so this is not the sum of the rows above it.
  add_row("all at once", 2 * memory_category_count, false);
  return table.text();
}

std::string traffic_report(Communicator& world, std::span<const Communicator* const> groups,
                           const TrafficPrediction& predicted) {
  // The counters are read before they are gathered, because gathering is traffic too.
  std::vector<Index> mine(2 * operation_count + 2, 0);
  const auto count = [&mine](std::size_t row, const Traffic& traffic) {
    mine[2 * row] += traffic.calls;
    mine[2 * row + 1] += traffic.bytes;
  };
  for (const Communicator* group : groups) {
    for (std::size_t i = 0; i < operation_count; ++i) count(i, group->traffic(static_cast<Operation>(i)));
    count(operation_count, group->control_traffic());
  }
  std::vector<Index> sums(mine.size(), 0);
  for (const std::vector<Index>& rank : gather_numbers(world, mine)) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += rank[i];
  }

  TextTable table({"traffic of all ranks", "calls", "bytes", "predicted bytes", "difference"});
  for (std::size_t i = 0; i < operation_count; ++i) {
    const Index calls = sums[2 * i], bytes = sums[2 * i + 1], expected = predicted.bytes[i];
    if (calls == 0 && expected == 0) continue;
    table.add({std::string(to_string(static_cast<Operation>(i))), grouped(calls), grouped(bytes),
               grouped(expected), difference(static_cast<double>(bytes), static_cast<double>(expected))});
  }
  table.add({"control messages", grouped(sums[2 * operation_count]), grouped(sums[2 * operation_count + 1]),
             "", ""});
  return table.text();
}

}  // namespace escalera
