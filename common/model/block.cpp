// One transformer block, forward and backward.
#include <cmath>

#include "common/model/units.h"

namespace escalera {

struct Block::State final : UnitState {
  // Rows are T outside the tensor region and may be fewer there; see TensorRegion.
  Tensor x;                 // [T, H] input
  Tensor input_rstd;        // [1, T] wide
  Tensor input_normed;      // [T, H], unless it is recomputed
  std::unique_ptr<AttentionCore::State> attention;  // q, k, v, output, log-sum-exp
  Tensor attention_out;     // [T, heads * head size], shared with the attention's state
  Tensor middle;            // [T, H] after the first residual sum
  Tensor middle_rstd;       // [1, T] wide
  Tensor middle_normed;     // [T, H], unless it is recomputed
  std::unique_ptr<UnitState> feed_forward;
};

Block::Block(UnitContext& context, Bucket& bucket, Index layer, const FeedForwardFactory& make_feed_forward,
             std::span<Bucket* const> further_buckets)
    : Unit("model.layers." + std::to_string(layer)), context_(context), bucket_(bucket) {
  const ModelConfig& config = context.config;
  const TensorRegion& region = context.region;
  const std::string prefix = name() + ".";
  const Index hidden = config.hidden_size, head = config.head_size();
  const auto rows_of = [head](Slice heads) {  // a slice of heads as a slice of rows
    heads.begin *= head;
    heads.size *= head;
    heads.padded *= head;
    return heads;
  };
  query_heads_ = region.split(config.num_attention_heads);
  kv_heads_ = region.kv_heads(config.num_key_value_heads);
  const Initialization ones{Initialization::Kind::ones, 0};
  const Initialization matrix{Initialization::Kind::normal, config.initializer_range};
  const double layers = static_cast<double>(config.num_hidden_layers);
  const Initialization residual{Initialization::Kind::normal, config.initializer_range / std::sqrt(2 * layers)};
  using Split = Parameter::Split;
  const Index query_rows = config.num_attention_heads * head, kv_rows = config.num_key_value_heads * head;

  input_norm_ = bucket.add(
      {prefix + "input_layernorm.weight", 1, hidden, Split::none, region.outside(hidden), ones, false});
  post_attention_norm_ = bucket.add(
      {prefix + "post_attention_layernorm.weight", 1, hidden, Split::none, region.outside(hidden), ones, false});
  // q, k and v lie side by side, so that one GEMM serves all three.
  query_ = bucket.add(
      {prefix + "self_attn.q_proj.weight", query_rows, hidden, Split::rows, rows_of(query_heads_), matrix});
  bucket.add({prefix + "self_attn.k_proj.weight", kv_rows, hidden, Split::rows, rows_of(kv_heads_), matrix});
  value_ =
      bucket.add({prefix + "self_attn.v_proj.weight", kv_rows, hidden, Split::rows, rows_of(kv_heads_), matrix});
  output_ = bucket.add(
      {prefix + "self_attn.o_proj.weight", hidden, query_rows, Split::columns, rows_of(query_heads_), residual});
  feed_forward_ = make_feed_forward(context, bucket, prefix);

  uses_ = {&bucket};
  uses_.insert(uses_.end(), further_buckets.begin(), further_buckets.end());
  owns_ = uses_;
}

LinearRef Block::query_key_value() const {
  return {bucket_.merged_weight(query_, value_), bucket_.merged_gradient(query_, value_)};
}

LinearRef Block::output() const { return {bucket_.weight(output_), bucket_.gradient(output_)}; }

Tensor Block::forward(const Tensor& x, const MicroBatch& micro_batch, std::unique_ptr<UnitState>& state) {
  Ops& ops = context_.ops;
  Device& device = ops.device();
  const ModelConfig& config = context_.config;
  const DType dtype = context_.dtype, wide = accumulation_dtype(dtype);
  const bool keep_normed = context_.recompute != Recompute::selective;
  const MemoryCategory normed_category = keep_normed ? MemoryCategory::activations : MemoryCategory::workspace;
  const Index head = config.head_size();
  auto kept = std::make_unique<State>();

  // Attention half: x -> norm -> q, k, v -> rotate -> attention -> output projection.
  kept->x = x;
  kept->input_rstd = device.empty(1, x.rows(), wide, MemoryCategory::activations);
  Tensor input_normed = device.empty(x.rows(), x.columns(), dtype, normed_category);
  ops.rms_norm_forward(x, bucket_.weight(input_norm_), config.rms_norm_eps, input_normed, kept->input_rstd);
  Tensor qkv = context_.region.column_linear(input_normed, query_key_value(), MemoryCategory::workspace);
  if (keep_normed) kept->input_normed = input_normed;
  const Index rows = qkv.rows();  // all rows of the region
  const HeadCounts counts{micro_batch.sequences, micro_batch.sequence_length, query_heads_.size, kv_heads_.size, head};
  const Tensor q = device.empty(rows, query_heads_.size * head, dtype, MemoryCategory::activations);
  const Tensor k = device.empty(rows, kv_heads_.size * head, dtype, MemoryCategory::activations);
  const Tensor v = device.empty(rows, kv_heads_.size * head, dtype, MemoryCategory::activations);
  ops.rope_split_forward(qkv, context_.rope_table, micro_batch.positions, head, q, k, v);
  qkv = {};
  kept->attention_out = context_.attention.forward(q, k, v, counts, kept->attention);
  const Tensor attended = context_.region.row_linear(kept->attention_out, output(), MemoryCategory::workspace);

  // Feed-forward half, on the residual sum.
  kept->middle = device.empty(x.rows(), x.columns(), dtype, MemoryCategory::activations);
  kept->middle_rstd = device.empty(1, x.rows(), wide, MemoryCategory::activations);
  const Tensor middle_normed = device.empty(x.rows(), x.columns(), dtype, normed_category);
  ops.add_rms_norm_forward(x, attended, bucket_.weight(post_attention_norm_), config.rms_norm_eps, kept->middle,
                           middle_normed, kept->middle_rstd);
  if (keep_normed) kept->middle_normed = middle_normed;
  const Tensor fed = feed_forward_->forward(middle_normed, micro_batch, kept->feed_forward);
  const Tensor y = device.empty(x.rows(), x.columns(), dtype, MemoryCategory::activations);
  ops.add(kept->middle, fed, y);
  state = std::move(kept);
  return y;
}

Tensor Block::normed(const Tensor& kept, const Tensor& x, const Tensor& rstd, int norm) const {
  if (!kept.empty()) return kept;
  const Tensor again = context_.ops.device().empty(x.rows(), x.columns(), x.dtype(), MemoryCategory::workspace);
  context_.ops.rms_norm_apply(x, rstd, bucket_.weight(norm), again);
  return again;
}

Tensor Block::backward(const Tensor& dy, const MicroBatch& micro_batch, UnitState& state, WeightWork& work) {
  Ops& ops = context_.ops;
  Device& device = ops.device();
  State& kept = dynamic_cast<State&>(state);
  const Index head = context_.config.head_size();
  const auto like = [&](const Tensor& shape) {
    return device.empty(shape.rows(), shape.columns(), shape.dtype(), MemoryCategory::workspace);
  };

  // Feed-forward half. The gradient of the residual sum is dy itself plus what comes back through the norm.
  const Tensor middle_normed = normed(kept.middle_normed, kept.middle, kept.middle_rstd, post_attention_norm_);
  const Tensor d_middle_normed = feed_forward_->backward(dy, middle_normed, micro_batch, *kept.feed_forward, work);
  const Tensor d_middle = like(dy);
  ops.rms_norm_backward(d_middle_normed, kept.middle, kept.middle_rstd, bucket_.weight(post_attention_norm_), dy,
                        d_middle, bucket_.gradient(post_attention_norm_));

  // Attention half, the same way.
  const Tensor d_attention = context_.region.row_linear_backward(d_middle, kept.attention_out, output(), work);
  const Index rows = d_attention.rows();
  const Tensor dq = device.empty(rows, query_heads_.size * head, dy.dtype(), MemoryCategory::workspace);
  const Tensor dk = device.empty(rows, kv_heads_.size * head, dy.dtype(), MemoryCategory::workspace);
  const Tensor dv = device.empty(rows, kv_heads_.size * head, dy.dtype(), MemoryCategory::workspace);
  context_.attention.backward(*kept.attention, d_attention, dq, dk, dv);
  const Tensor d_qkv =
      device.empty(rows, (query_heads_.size + 2 * kv_heads_.size) * head, dy.dtype(), MemoryCategory::workspace);
  ops.rope_merge_backward(dq, dk, dv, context_.rope_table, micro_batch.positions, head, d_qkv);
  const Tensor input_normed = normed(kept.input_normed, kept.x, kept.input_rstd, input_norm_);
  const Tensor d_input_normed = context_.region.column_linear_backward(d_qkv, input_normed, query_key_value(), work);
  const Tensor dx = like(kept.x);
  ops.rms_norm_backward(d_input_normed, kept.x, kept.input_rstd, bucket_.weight(input_norm_), d_middle, dx,
                        bucket_.gradient(input_norm_));
  return dx;
}

}  // namespace escalera
