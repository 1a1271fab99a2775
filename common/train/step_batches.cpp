#include "common/train/step_batches.h"

#include <algorithm>
#include <numeric>

namespace escalera {
namespace {

Index count_targets(const std::vector<std::int32_t>& targets) {
  return std::count_if(targets.begin(), targets.end(), [](std::int32_t target) { return target >= 0; });
}

}  // namespace

StepBatches::StepBatches(std::vector<std::int32_t> positions, Index seq_length)
    : positions_(std::move(positions)), seq_length_(seq_length) {}

void StepBatches::fill(const BatchSampler& sampler, const BatchShape& shape, Index consumed, Index dp_rank) {
  cuts_.resize(static_cast<std::size_t>(shape.accumulation));
  whole_.resize(shape.micro_batch_size, seq_length_);
  for (Index number = 0; number < shape.accumulation; number++) {
    sampler.fill(shape.samples(consumed, number, dp_rank), whole_);
    cut(cuts_[static_cast<std::size_t>(number)]);
  }
}

void StepBatches::cut(Cut& to) const {
  to.tokens.clear();
  to.targets.clear();
  for (Index row = 0; row < whole_.sequences; row++) {
    for (const std::int32_t position : positions_) {
      const auto i = static_cast<std::size_t>(row * seq_length_ + position);
      to.tokens.push_back(whole_.tokens[i]);
      to.targets.push_back(whole_.targets[i]);
    }
  }
}

Index StepBatches::unmasked_targets() const {
  Index count = 0;
  for (const Cut& cut : cuts_) count += count_targets(cut.targets);
  return count;
}

MicroBatch StepBatches::micro_batch(Index number, Index global_targets, Index global_sequences) const {
  const Cut& cut = cuts_.at(static_cast<std::size_t>(number));
  MicroBatch micro_batch;
  micro_batch.sequence_length = static_cast<Index>(positions_.size());
  micro_batch.sequences = static_cast<Index>(cut.tokens.size() / positions_.size());
  micro_batch.tokens = cut.tokens;
  micro_batch.targets = cut.targets;
  micro_batch.positions = positions_;
  micro_batch.loss_scale = global_targets > 0 ? 1.0 / static_cast<double>(global_targets) : 0.0;
  micro_batch.global_sequences = global_sequences;
  return micro_batch;
}

ValidationResult validate_model(Communicator& group, const ValidationSet& held_out, Index micro_batch_size,
                                Index seq_length, Index batches,
                                const std::function<double(const MicroBatch&)>& loss_sum) {
  std::vector<std::int32_t> positions(static_cast<std::size_t>(seq_length));
  std::iota(positions.begin(), positions.end(), 0);
  Batch batch;
  batch.resize(micro_batch_size, seq_length);
  std::vector<Index> windows(static_cast<std::size_t>(micro_batch_size));
  double loss = 0;
  Index tokens = 0;
  for (Index number = 0; number < batches; number++) {
    // All ranks stop after the same pass, because a forward may communicate; who has no window left reads masked rows.
    if (number * group.size() * micro_batch_size >= held_out.windows()) break;
    const Index first = (number * group.size() + group.rank()) * micro_batch_size;
    std::iota(windows.begin(), windows.end(), first);
    held_out.fill(windows, batch);
    MicroBatch micro_batch;
    micro_batch.sequences = micro_batch_size;
    micro_batch.sequence_length = seq_length;
    micro_batch.tokens = batch.tokens;
    micro_batch.targets = batch.targets;
    micro_batch.positions = positions;
    micro_batch.loss_scale = 1;
    micro_batch.global_sequences = micro_batch_size * group.size();
    loss += loss_sum(micro_batch);
    tokens += batch.unmasked_targets();
  }
  ValidationResult result;
  result.tokens = group.sum(tokens);
  result.loss = group.sum(loss) / static_cast<double>(std::max<Index>(result.tokens, 1));
  return result;
}

}  // namespace escalera
