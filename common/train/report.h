// The tables at the end of a run: what was counted beside what the formulas say.
// defines: MemoryPrediction, TrafficPrediction, memory_report(), traffic_report(), difference()
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/comm/communicator.h"
#include "common/core/memory.h"
#include "common/train/options.h"

namespace escalera {

/// Bytes per rank that a formula predicts for the peak of each category; empty where there is no formula.
struct MemoryPrediction {
  std::array<std::optional<Index>, memory_category_count> bytes{};  ///< in the order of MemoryCategory
  /// The slot of a category.
  /// @{
  std::optional<Index>& operator[](MemoryCategory category) {
    return bytes[static_cast<std::size_t>(category)];
  }
  const std::optional<Index>& operator[](MemoryCategory category) const {
    return bytes[static_cast<std::size_t>(category)];
  }
  /// @}
};

/// Parameters, gradients, optimizer and activations of a rank that holds the whole model (no sharding).
MemoryPrediction predict_memory(const TrainOptions& options);

/// Bytes that formulas predict per operation, summed over ranks and steps; an operation that is not named is
/// predicted to send nothing.
struct TrafficPrediction {
  std::array<Index, operation_count> bytes{};  ///< in the order of Operation
  /// The slot of an operation.
  /// @{
  Index& operator[](Operation operation) { return bytes[static_cast<std::size_t>(operation)]; }
  const Index& operator[](Operation operation) const { return bytes[static_cast<std::size_t>(operation)]; }
  /// @}
};

/// "=" if equal, else the difference in percent of what was predicted: "+0.4 %".
std::string difference(double measured, double predicted);

/// A table with the peak of each category: least and most of any rank, sum over ranks, predicted sum,
/// difference. `ledger` is this rank's. Collective; the text is the same on all ranks.
std::string memory_report(Communicator& world, const MemoryLedger& ledger, const MemoryPrediction& predicted);

/// A table with calls and bytes of each operation that was used or predicted, summed over ranks and over
/// `groups`, and a row for control messages, which no formula covers. Collective over `world`, whose own
/// traffic for this counts as control and is not in the table.
std::string traffic_report(Communicator& world, std::span<const Communicator* const> groups,
                           const TrafficPrediction& predicted);

}  // namespace escalera
