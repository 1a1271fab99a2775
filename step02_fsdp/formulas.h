// What a sharded run should need, computed from its options alone.
// defines: ShardedRun, ShardedMemory, sharded_memory(), gathered_peak(), communication_peak(), step_traffic(), run_traffic()
#pragma once

#include <vector>

#include "common/model/config.h"
#include "common/train/options.h"
#include "common/train/report.h"
#include "step02_fsdp/fully_sharded.h"

namespace escalera {

/// The options that the formulas read.
struct ShardedRun {
  ModelConfig model;                               ///< of all ranks together
  DType dtype = DType::float32;                    ///< of weights and activations
  OptimizerKind optimizer = OptimizerKind::adamw;  ///< which states there are
  ShardingSettings sharding;                       ///< stage, prefetch, ...
  int shards = 1;                                  ///< ranks of a shard group
  int replicas = 1;                                ///< shard groups
  Index micro_batches = 1;                         ///< per step
};

/// Bytes that stay from step to step.
struct ShardedMemory {
  /// One category.
  struct Bytes {
    Index per_rank = 0;  ///< with padding; the same on all ranks
    Index padding = 0;   ///< of all ranks together
  };
  Bytes parameters;  ///< weights in the model's type: whole, or one part (stage 3)
  Bytes gradients;   ///< in the accumulation type: whole, or one part (stages 2 and 3)
  Bytes optimizer;   ///< AdamW's moments, and master weights in bfloat16: whole in stage 0, or one part
};
/// With S shards, each bucket of n elements has parts of ceil(n / S). Stage 0 holds everything, 1 a part of the optimizer's
/// states, 2 also of the gradients, 3 also of the parameters; what is held whole is S parts.
ShardedMemory sharded_memory(const ShardedRun& run);

/// The most bytes of gathered weights on a rank: nothing below stage 3; there, the largest sum of the buckets of prefetch + 1
/// neighbouring visits, or of all buckets with --no-reshard-after-forward.
Index gathered_peak(const ShardedRun& run);

/// The most bytes of gathered weights, temporary gradients and converted gradients on a rank at once.
Index communication_peak(const ShardedRun& run);

/// Bytes that one step sends, summed over ranks. With P elements including padding, S shards, R replicas, m micro-batches, w and g
/// bytes per weight and gradient on their way:
///   reduce_scatter  R (S-1) P g, in stages 2 and 3 times m
///   all_reduce      2 P g
///   all_gather      R (S-1) P w in stages 1 and 2; in stage 3 times the number of gathers of each bucket
TrafficPrediction step_traffic(const ShardedRun& run);

/// A whole run: `steps` steps and `passes` forward passes over held-out text, which gather weights in stage 3. Stages 1 and 2 also
/// gather the first weights.
TrafficPrediction run_traffic(const ShardedRun& run, Index steps, Index passes);

}  // namespace escalera
