// The parity run in a layout: every chapter's suite runs it and judges it against one process by the same rule.
// defines: ParityLayout, run_parity(), parity_reference(), expect_parity(), gather_tensors()
#pragma once

#include <functional>
#include <string>

#include "common/checkpoint/whole_tensors.h"
#include "tests/support/parity.h"

namespace escalera {

/// How the parity run is spread over ranks. A function that is empty does nothing; what comes back from an empty sum is this
/// rank's own value.
struct ParityLayout {
  Communicator& world;             ///< all ranks of the run, with host memory
  int parts = 1, part = 0;         ///< into how many parts the batch is dealt out, and which is this rank's
  Index accumulation = 1;          ///< micro-batches of this rank and step
  Index sequences = parity_sequences;  ///< of a step; must divide by parts * accumulation
  std::function<void(MicroBatch& micro_batch)> adjust = {};  ///< before a micro-batch is used, for planted faults
  std::function<void()> reduce = {};                         ///< after the last backward: gradients are complete when it returns
  std::function<double(double)> sum_loss = {}, sum_squares = {};  ///< over ranks: of the loss, of the squared norm
  std::function<void()> after_update = {};                        ///< gathers what was updated in parts
};

/// Two steps of SGD with clipping on an allocated and initialized model. Compares replicas after each step. The record holds
/// losses and norms on every rank, gradients (before clipping) and weights on rank 0 of the world.
RunRecord run_parity(Model& model, const ParityLayout& layout);

/// The same steps on one process, one sequence to a micro-batch: a size that layouts do not use. Computed once and kept.
const RunRecord& parity_reference(const ModelConfig& config, DType dtype, DType rounding, Index sequences = parity_sequences);

/// Judges a record of rank 0: float64 within 1e-10 of one process; others at most twice as far from float64 at the same weights
/// as one process of that type, plus 1e-6 (float32) or 2^-8 (bfloat16).
void expect_parity(const RunRecord& record, const ModelConfig& config, DType dtype, DType rounding,
                   Index sequences = parity_sequences);

/// What the ranks hold between them, on rank 0; elsewhere nothing. Collective.
NamedTensors gather_tensors(Communicator& world, Model& model, Held held);

/// The seed of the parity run's weights, for initialize_rounded().
inline constexpr std::uint64_t parity_seed = 42;

}  // namespace escalera
