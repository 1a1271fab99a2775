// The micro-batches of one step, as one rank sees them; and the loss on held-out text.
// defines: StepBatches, ValidationResult, validate_model()
#pragma once

#include <functional>
#include <vector>

#include "common/comm/communicator.h"
#include "common/data/sampler.h"
#include "common/model/micro_batch.h"

namespace escalera {

/// Host memory for the micro-batches of a step. Sequences are read whole and cut to this rank's `positions` afterwards, so
/// that the target of a token is its neighbour in the text and not in the cut.
class StepBatches {
 public:
  /// `positions`: global positions of this rank's tokens in each sequence of `seq_length`, see AttentionCore::positions.
  StepBatches(std::vector<std::int32_t> positions, Index seq_length);

  /// Reads the micro-batches of `shape` for data-parallel rank `dp_rank`, in the step before which `consumed` samples of the
  /// run were used.
  void fill(const BatchSampler& sampler, const BatchShape& shape, Index consumed, Index dp_rank);

  /// Targets that count, in all micro-batches of this rank.
  Index unmasked_targets() const;
  /// Micro-batch `number`, for the model. `global_targets` is the sum of unmasked_targets() over all ranks with text of
  /// their own; 0 makes a step without gradient. The result points into this object.
  MicroBatch micro_batch(Index number, Index global_targets, Index global_sequences) const;

 private:
  struct Cut {
    std::vector<std::int32_t> tokens, targets;  // [b * positions]
  };
  void cut(Cut& to) const;

  std::vector<std::int32_t> positions_;
  Index seq_length_;
  Batch whole_;
  std::vector<Cut> cuts_;
};

/// Outcome of a validation.
struct ValidationResult {
  double loss = 0;   ///< mean over tokens, in nats
  Index tokens = 0;  ///< targets it is a mean of
};

/// Mean loss over the first `batches` batches of `micro_batch_size` windows per rank of `group`. `loss_sum` returns the sum
/// of token losses of a micro-batch with loss_scale 1 (Model::evaluate). Collective over `group`; the same on all its ranks,
/// and the same for every layout that sees the same windows.
ValidationResult validate_model(Communicator& group, const ValidationSet& held_out, Index micro_batch_size,
                                Index seq_length, Index batches,
                                const std::function<double(const MicroBatch&)>& loss_sum);

}  // namespace escalera
