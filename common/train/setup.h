// From options to the objects of a run.
// defines: Placement, optimizer_settings(), validation_fraction()
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/core/trace.h"
#include "common/ops/ops.h"
#include "common/optim/optimizer.h"
#include "common/train/options.h"

namespace escalera {

/// Where a rank computes, and what carries its tensors. On the CPU that is the world communicator itself; ranks with GPUs use
/// NCCL if each has one of its own, and host memory if they share. Must not outlive the world.
class Placement {
 public:
  /// Collective. `options` are validated; spans of the communication go to `trace`. Throws UsageError if --comm asks for what
  /// these ranks and GPUs cannot do.
  Placement(Communicator& world, const TrainOptions& options, Trace& trace);

  /// The operations of this rank's device.
  Ops& ops() { return *ops_; }
  /// All ranks, for tensors of that device.
  Communicator& tensors() { return tensors_ ? *tensors_ : world_; }
  /// Whether tensors travel through host memory, which is then counted as communication too.
  bool stages_in_host_memory() const { return staged_; }
  /// Rows for the configuration table.
  std::vector<std::pair<std::string, std::string>> rows() const;

 private:
  void place_on_gpus(const TrainOptions& options, Trace& trace);

  Communicator& world_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Communicator> tensors_;
  std::string communication_;
  bool staged_ = false;
};

/// What the optimizer needs of the options.
OptimizerSettings optimizer_settings(const TrainOptions& options);

/// The share of the text that is held out: a twentieth with --eval-every, nothing without.
double validation_fraction(const TrainOptions& options);

}  // namespace escalera
