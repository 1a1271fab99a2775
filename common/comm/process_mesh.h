// The ranks of a run as a grid, and the groups along its axes.
// defines: MeshSizes, ProcessMesh
#pragma once

#include <memory>
#include <string>

#include "common/comm/communicator.h"

namespace escalera {

/// Degrees of parallelism. world = tp * cp * pp * dp; ep divides cp * dp.
struct MeshSizes {
  /// Degree of tensor, context, pipeline, data and expert parallelism; 1: not used.
  /// @{
  int tp = 1, cp = 1, pp = 1, dp = 1, ep = 1;
  /// @}
  /// Ranks that these degrees need.
  int world() const { return tp * cp * pp * dp; }
};

/// A grid of ranks with axes tp, cp, pp, dp. `order` lists them fastest first. Creation is collective over the world.
/// Each rank belongs to one group per axis, and to these unions:
///  - dp_cp: all ranks that hold the same slice of the dense parameters (their gradients are summed over it);
///  - ep: the ranks that share out the experts, consecutive in (cp + cp_size * dp), so expert index = (cp + cp_size * dp) mod ep;
///  - expert_dp: the ranks that hold the same experts.
class ProcessMesh {
 public:
  /// Throws UsageError, naming all sizes and a value that would work, unless sizes.world() is the world's size and
  /// every degree is at least 1, ep divides cp * dp, and `order` names each axis once ("tp,cp,pp,dp").
  ProcessMesh(Communicator& world, const MeshSizes& sizes, const std::string& order = "tp,cp,pp,dp");

  /// As given to the constructor.
  const MeshSizes& sizes() const { return sizes_; }
  /// This rank's group along each axis and in each union, named like the function. All but `world` belong to the mesh.
  /// @{
  Communicator& world() { return world_; }
  Communicator& tp() { return *tp_; }
  Communicator& cp() { return *cp_; }
  Communicator& pp() { return *pp_; }
  Communicator& dp() { return *dp_; }
  Communicator& ep() { return *ep_; }
  Communicator& dp_cp() { return *dp_cp_; }
  Communicator& expert_dp() { return *expert_dp_; }
  /// @}

  /// The check alone, without any rank: for use before anything is started.
  static void validate(const MeshSizes& sizes, int world_size, const std::string& order);

 private:
  Communicator& world_;
  MeshSizes sizes_;
  std::unique_ptr<Communicator> tp_, cp_, pp_, dp_, ep_, dp_cp_, expert_dp_;
};

}  // namespace escalera
