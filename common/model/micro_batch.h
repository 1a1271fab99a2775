// What one forward and backward pass works on.
// defines: MicroBatch
#pragma once

#include <cstdint>
#include <span>

#include "common/core/dtype.h"

namespace escalera {

/// One micro-batch as this rank sees it. The spans belong to the caller and must stay until its backward is done.
struct MicroBatch {
  Index sequences = 0;                      ///< b
  Index sequence_length = 0;                ///< s, this rank's part of each sequence
  std::span<const std::int32_t> tokens;     ///< [b * s]
  std::span<const std::int32_t> targets;    ///< [b * s], the next token of each; < 0 is masked
  std::span<const std::int32_t> positions;  ///< [s], global position of each local token in its sequence
  /// What token losses are multiplied by: 1 / (unmasked targets of the global batch), so that every sum over tokens,
  /// micro-batches and ranks is a plain sum.
  double loss_scale = 0;
  Index global_sequences = 0;  ///< of the step; for losses that are taken per sequence
  /// Set while a unit's forward runs a second time for its backward: what happens once per token (losses, counts) must
  /// not happen again.
  bool recomputing = false;
};

}  // namespace escalera
