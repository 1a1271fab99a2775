// The last unit: final norm, logits, and the loss with its gradient.
#include <algorithm>

#include "common/model/units.h"

namespace escalera {
namespace {

// Logits are made and used up this many rows at a time, while they are in the cache: with a large vocabulary, four passes
// over all of them would each come from memory.
constexpr Index loss_rows = 256;

}  // namespace

struct Head::State final : UnitState {
  Tensor x;         // [T, H] input
  Tensor rstd;      // [1, T] wide
  Tensor normed;    // [T, H], unless it is recomputed
  Tensor d_logits;  // [T, V], the gradient in the place of the logits
};

Head::Head(UnitContext& context, Bucket& bucket, Bucket& vocabulary, int table)
    : Unit("lm_head"), context_(context), bucket_(bucket), vocabulary_(vocabulary), table_(table) {
  const Index hidden = context.config.hidden_size;
  norm_ = bucket.add({"model.norm.weight", 1, hidden, Parameter::Split::none, context.region.outside(hidden),
                      {Initialization::Kind::ones, 0}, false});
  uses_ = {&bucket};
  // A tied matrix is complete only after the embedding's backward, so the embedding owns it.
  if (&vocabulary != &bucket) uses_.push_back(&vocabulary);
  owns_ = {&bucket};
}

Tensor Head::forward(const Tensor& x, const MicroBatch& micro_batch, std::unique_ptr<UnitState>& state) {
  Ops& ops = context_.ops;
  Device& device = ops.device();
  const DType wide = accumulation_dtype(context_.dtype);
  const bool keep_normed = context_.recompute != Recompute::selective;
  auto kept = std::make_unique<State>();

  kept->x = x;
  kept->rstd = device.empty(1, x.rows(), wide, MemoryCategory::activations);
  const Tensor normed = device.empty(x.rows(), x.columns(), context_.dtype,
                                     keep_normed ? MemoryCategory::activations : MemoryCategory::workspace);
  ops.rms_norm_forward(x, bucket_.weight(norm_), context_.config.rms_norm_eps, normed, kept->rstd);
  if (keep_normed) kept->normed = normed;
  const Tensor whole = context_.region.enter(normed);
  const Tensor table = vocabulary_.weight(table_);
  kept->d_logits = device.empty(whole.rows(), table.rows(), context_.dtype, MemoryCategory::activations);
  for (Index row = 0; row < whole.rows(); row += loss_rows) {
    const Index count = std::min(loss_rows, whole.rows() - row);
    const Tensor logits = kept->d_logits.slice_rows(row, count);
    ops.linear_forward(whole.slice_rows(row, count), table, logits);
    loss_and_gradient(logits, micro_batch, micro_batch.targets.subspan(static_cast<std::size_t>(row),
                                                                       static_cast<std::size_t>(count)));
  }
  state = std::move(kept);
  return {};
}

// Softmax over a vocabulary of which this rank holds the rows of its slice: the largest logit of each row, then the sum of
// exponentials and the target's logit, are combined over the region; padding columns are left out, not masked.
void Head::loss_and_gradient(const Tensor& logits, const MicroBatch& micro_batch,
                             std::span<const std::int32_t> targets) const {
  Ops& ops = context_.ops;
  const DType wide = accumulation_dtype(context_.dtype);
  const Slice& mine = projection().slice;
  const Tensor row_max = ops.device().empty(1, logits.rows(), wide, MemoryCategory::workspace);
  const Tensor sums = ops.device().empty(2, logits.rows(), wide, MemoryCategory::workspace);
  ops.cross_entropy_row_max(logits, mine.size, row_max);
  context_.region.row_max(row_max);
  ops.cross_entropy_row_sums(logits, mine.size, targets, mine.begin, row_max, sums);
  context_.region.row_sum(sums);
  ops.cross_entropy_backward(logits, mine.size, targets, mine.begin, row_max, sums, micro_batch.loss_scale,
                             micro_batch.recomputing ? 0.0 : context_.region.share(), context_.loss);
}

Tensor Head::backward(const Tensor& /*dy*/, const MicroBatch& /*micro_batch*/, UnitState& state, WeightWork& work) {
  Ops& ops = context_.ops;
  State& kept = dynamic_cast<State&>(state);
  Tensor normed = kept.normed;
  if (normed.empty()) {
    normed = ops.device().empty(kept.x.rows(), kept.x.columns(), kept.x.dtype(), MemoryCategory::workspace);
    ops.rms_norm_apply(kept.x, kept.rstd, bucket_.weight(norm_), normed);
  }
  const Tensor d_normed = context_.region.column_linear_backward(
      kept.d_logits, normed, {vocabulary_.weight(table_), vocabulary_.gradient(table_)}, work);
  const Tensor dx = ops.device().empty(kept.x.rows(), kept.x.columns(), kept.x.dtype(), MemoryCategory::workspace);
  ops.rms_norm_backward(d_normed, kept.x, kept.rstd, bucket_.weight(norm_), {}, dx, bucket_.gradient(norm_));
  return dx;
}

Tensor Head::logits(const Tensor& x) const {
  Device& device = context_.ops.device();
  const Tensor normed = device.empty(x.rows(), x.columns(), context_.dtype, MemoryCategory::workspace);
  const Tensor rstd = device.empty(1, x.rows(), accumulation_dtype(context_.dtype), MemoryCategory::workspace);
  context_.ops.rms_norm_forward(x, bucket_.weight(norm_), context_.config.rms_norm_eps, normed, rstd);
  return context_.region.column_linear(normed, {vocabulary_.weight(table_), {}}, MemoryCategory::workspace);
}

}  // namespace escalera
