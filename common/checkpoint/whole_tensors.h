// Parameters put together again from what the ranks of any layout hold: shards, slices, stages, replicas.
// defines: Held, WholeTensors
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "common/comm/communicator.h"
#include "common/model/model.h"

namespace escalera {

/// What a bucket holds a shard of.
enum class Held {
  weights,    ///< in the model's type
  gradients,  ///< in the accumulation type
  master,     ///< the weights as the optimizer has them, in the accumulation type
};

/// Where the elements of every parameter of a model are, over all ranks of a run. Parameters come in the order of the model,
/// the first rank's first.
class WholeTensors {
 public:
  /// Learns what each rank of `world`, which carries host memory, holds of the model. Collective. Throws Error on all ranks if
  /// there are elements that no rank holds, or if ranks cut a parameter in ways that do not fit together.
  WholeTensors(Communicator& world, Model& model);

  /// One whole parameter: its record as one of its ranks has it (slice and offset mean nothing here).
  struct Whole {
    Parameter parameter;  ///< name, shape, decay
    /// Who sends which of its local elements. Replicas are left out: the first rank that holds a piece sends it.
    struct Piece {
      int rank = 0;       ///< of the world
      Parameter record;   ///< as that rank has it
      Range part;         ///< local elements in that rank's shard
    };
    std::vector<Piece> pieces;  ///< in rank order
  };
  /// All parameters of the whole model; the same on all ranks.
  const std::vector<Whole>& parameters() const { return parameters_; }

  /// Hands each whole parameter, row-major and without padding, to `use` on rank 0, one after another. Collective: the other
  /// ranks send. What `use` throws is thrown on rank 0 when all has been received; the others know nothing of it.
  void collect(Held held, const std::function<void(const Parameter& parameter, std::span<const std::byte> values)>& use);

 private:
  Communicator& world_;
  Model& model_;
  std::vector<Whole> parameters_;
};

}  // namespace escalera
