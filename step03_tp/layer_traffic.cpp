#include "step03_tp/layer_traffic.h"

#include "common/train/text_table.h"

namespace escalera {
namespace {

// Blocks are the units that can be run again.
bool is_block(const Unit& unit) {
  return unit.can_recompute();
}

}  // namespace

void LayerTraffic::begin(const Unit& unit) {
  if (!is_block(unit)) return;
  for (std::size_t i = 0; i < operation_count; i++) before_[i] = group_.traffic(static_cast<Operation>(i));
}

void LayerTraffic::end(const Unit& unit, Count& count) const {
  if (!is_block(unit)) return;
  count.visits++;
  for (std::size_t i = 0; i < operation_count; i++) {
    const Traffic& now = group_.traffic(static_cast<Operation>(i));
    count.calls[i] += now.calls - before_[i].calls;
    count.bytes[i] += now.bytes - before_[i].bytes;
  }
}

std::string LayerTraffic::report(Communicator& world, Index groups, const VisitTraffic& predicted) const {
  TextTable table({"traffic per layer and micro-batch", "calls", "bytes", "predicted bytes", "difference"});
  const auto add_rows = [&](const std::string& direction, const Count& count,
                            const TrafficPrediction& expected) {
    // Ranks of one group count the same visits.
    const auto ranks = static_cast<Index>(world.size()) / groups;
    const Index visits = std::max<Index>(world.sum(count.visits) / ranks, 1);
    for (std::size_t i = 0; i < operation_count; i++) {
      const Index calls = world.sum(count.calls[i]), bytes = world.sum(count.bytes[i]);
      if (calls == 0 && expected.bytes[i] == 0) continue;
      const double measured = static_cast<double>(bytes) / static_cast<double>(visits);
      table.add({direction + ", " + std::string(to_string(static_cast<Operation>(i))),
                 grouped(calls / visits), grouped(bytes / visits), grouped(expected.bytes[i]),
                 difference(measured, static_cast<double>(expected.bytes[i]))});
    }
  };
  add_rows("forward", forward_, predicted.forward);
  add_rows("backward", backward_, predicted.backward);
  return table.text();
}

}  // namespace escalera
