// The parity run: two steps of SGD with clipping, on text and masks that hide nothing, compared tensor by
// tensor; parity_layout.h runs it in a layout.
// defines: parity_model(), ParityBatch, RunRecord, record_gradients(), record_weights(), initialize_rounded(),
// relative_error(), largest_error()
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model.h"
#include "tests/support/naive_model.h"

namespace escalera {

/// A model in which no two dimensions are equal and nothing divides what need not.
ModelConfig parity_model(bool tied);

/// Sequences of a parity batch, unless a layout needs another number.
inline constexpr Index parity_sequences = 48;

/// The global batch of one step: sequences of 24 tokens, made by a formula. Masks are uneven; sequence 1
/// is masked wholly and sequence 0 has a single target.
struct ParityBatch {
  Index sequences;
  Index length = 24;
  std::vector<std::int32_t> tokens, targets;  ///< [sequences * length]

  ParityBatch(const ModelConfig& config, Index step, Index sequences = parity_sequences);
  Index unmasked_targets() const;
  /// `count` sequences from `first` as a micro-batch that points into this object; `positions` are 0, 1, ...
  MicroBatch micro_batch(Index first, Index count, std::span<const std::int32_t> positions) const;
};

/// What is compared.
struct RunRecord {
  std::vector<double> losses, norms;    ///< per step
  std::vector<NamedTensors> gradients;  ///< per step, before clipping
  NamedTensors weights;                 ///< after the last step
};

/// Gradients (or weights) of a model that is whole on this rank, by name.
NamedTensors record_gradients(Model& model);
NamedTensors record_weights(Model& model);

/// The initial weights of this rank's shards, rounded to `rounding` first, so that models of different types start from the
/// same numbers.
void initialize_rounded(Model& model, std::uint64_t seed, DType rounding);

/// ||got - reference|| / ||reference||, or ||got|| where the reference is zero.
double relative_error(const std::vector<double>& got, const std::vector<double>& reference);
/// The largest error of any tensor, loss or norm, and where it is.
struct LargestError {
  double value = 0;
  std::string where;
};
LargestError largest_error(const RunRecord& got, const RunRecord& reference);

}  // namespace escalera
