// Which rank sees which sequence, and what a micro-batch of sequences looks like.
// defines: BatchShape, resolve_batch(), Batch, masked_target
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/core/dtype.h"

namespace escalera {

/// How a global batch is dealt out: d ranks, each with m micro-batches per step, each of b sequences.
/// Context, tensor and pipeline parallelism do not appear: their ranks work on the same sequences.
struct BatchShape {
  Index micro_batch_size = 1;  ///< b, sequences
  Index accumulation = 1;      ///< m, micro-batches per rank and step
  Index data_parallel = 1;     ///< d, ranks with sequences of their own

  /// b m d, in sequences.
  Index global_batch() const { return micro_batch_size * accumulation * data_parallel; }
  /// b m d s.
  Index tokens_per_step(Index seq_length) const { return global_batch() * seq_length; }

  /// The sample in row `row` of micro-batch `micro_batch` on data-parallel rank `dp_rank`, of the step before
  /// which the run had consumed `consumed` samples (step * global_batch(), if the batch never changed):
  ///
  ///     consumed + (micro_batch * d + dp_rank) * b + row
  ///
  /// This is the only place that deals out samples. A step uses consumed ... consumed + global_batch() - 1,
  /// each once, whatever b, m and d are: two layouts with the same global batch compute the same sum over it.
  Index sample_index(Index consumed, Index micro_batch, Index dp_rank, Index row) const {
    return consumed + (micro_batch * data_parallel + dp_rank) * micro_batch_size + row;
  }
  /// The samples of one micro-batch, in the order of its rows.
  std::vector<Index> samples(Index consumed, Index micro_batch, Index dp_rank) const;
};

/// Settles b, m and d from what was typed. `global_batch_size` or `accumulation` may be 0 for "not given":
/// the other decides; with neither, m is 1. Throws UsageError, naming the options and numbers and the nearest
/// values that work, if a number is not positive, if b d does not divide the global batch, or if all three
/// are given and disagree.
BatchShape resolve_batch(Index global_batch_size, Index micro_batch_size, Index accumulation,
                         Index data_parallel);

/// The target of a position that counts for nothing.
inline constexpr std::int32_t masked_target = -1;

/// Sequences with their targets, on the host. targets[i] is the token after tokens[i], shifted here, where
/// the sequence is still whole: after a split over context-parallel ranks, the token after the last one would
/// be elsewhere.
struct Batch {
  Index sequences = 0;               ///< rows
  Index seq_length = 0;              ///< tokens per row
  std::vector<std::int32_t> tokens;  ///< [sequences * seq_length]
  std::vector<std::int32_t>
      targets;  ///< [sequences * seq_length], masked_target where nothing is to be predicted

  /// Makes room for `sequences_` x `seq_length_`; memory is kept from one use to the next.
  void resize(Index sequences_, Index seq_length_);
  /// Targets that count. The loss is divided by the sum of this over the global batch.
  Index unmasked_targets() const;
};

}  // namespace escalera
