// What one layer sends, counted at its hooks.
// defines: LayerTraffic
#pragma once

#include <array>
#include <string>

#include "common/model/unit.h"
#include "common/train/report.h"
#include "step03_tp/formulas.h"

namespace escalera {

/// Reads the counters of a group before and after each visit of a block.
class LayerTraffic final : public UnitHooks {
 public:
  /// `group` must outlive it.
  explicit LayerTraffic(const Communicator& group) : group_(group) {}
  void before_forward(Unit& unit) override { begin(unit); }
  void after_forward(Unit& unit) override { end(unit, forward_); }
  void before_backward(Unit& unit) override { begin(unit); }
  void after_backward(Unit& unit) override { end(unit, backward_); }

  /// A table of bytes per layer and micro-batch of one group, all ranks together, beside `predicted`. Collective over `world`,
  /// with the same `predicted` on all ranks; `groups` is their number.
  std::string report(Communicator& world, Index groups, const VisitTraffic& predicted) const;

 private:
  struct Count {
    Index visits = 0;
    std::array<Index, operation_count> calls{}, bytes{};
  };
  void begin(const Unit& unit);
  void end(const Unit& unit, Count& count) const;

  const Communicator& group_;
  std::array<Traffic, operation_count> before_{};
  Count forward_, backward_;
};

}  // namespace escalera
