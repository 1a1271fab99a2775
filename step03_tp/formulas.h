// What a tensor-parallel run should need, from its options alone; the report sets these numbers beside the counted ones.
// defines: TensorLayout, tensor_share(), predict_memory(), layer_traffic(), evaluation_traffic(), step_traffic()
#pragma once

#include "common/train/report.h"
#include "step03_tp/tensor_parallel.h"

namespace escalera {

/// Sizes of a run of this chapter: tp * dp ranks.
struct TensorLayout {
  int tp = 1;                       ///< t, ranks that share out each matrix
  int dp = 1;                       ///< groups of t ranks, each with its own part of the batch
  TensorParallelSettings settings;  ///< what each group does
};

/// The model that one rank's slices make: 1/t of the heads, of the feed-forward width and of the vocabulary, rounded up, and at
/// least one key/value head. Its parameters are those that the rank holds, padding included.
ModelConfig tensor_share(const ModelConfig& model, int tp);

/// Bytes per rank at the peak of each category; `options` are validated.
MemoryPrediction predict_memory(const TrainOptions& options, const TensorLayout& layout);

/// Bytes that one visit of something sends per operation, summed over the ranks of one tensor-parallel group.
struct VisitTraffic {
  TrafficPrediction forward;   ///< one forward
  TrafficPrediction backward;  ///< one backward, what it computes again included
};
/// One block, for one micro-batch of T rows, with A = T H bytes(dtype):
///
///     plain              forward 2 all_reduce of A               backward 2 all_reduce of A
///     sequence parallel  forward 2 all_gather, 2 reduce_scatter  backward 4 all_gather, 2 reduce_scatter
///
/// An all_reduce of n bytes sends 2 (t - 1) n on all ranks, the others (t - 1) n. Full recompute repeats forward in backward.
VisitTraffic layer_traffic(const ModelConfig& model, DType dtype, Recompute recompute, Index rows,
                           const TensorLayout& layout);

/// One micro-batch forward through the whole model, on one group.
TrafficPrediction forward_traffic(const ModelConfig& model, DType dtype, Index rows,
                                  const TensorLayout& layout);

/// One training step on all ranks: every micro-batch forward and backward, the sums of gradients over data-parallel ranks, of
/// norms over tensor-parallel ones (sequence parallel), and of key/value heads over the ranks that share them.
TrafficPrediction step_traffic(const TrainOptions& options, const TensorLayout& layout);

/// a += factor * b.
void add(TrafficPrediction& a, const TrafficPrediction& b, Index factor = 1);

}  // namespace escalera
