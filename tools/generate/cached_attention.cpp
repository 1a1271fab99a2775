#include "tools/generate/cached_attention.h"

#include <numeric>

namespace escalera {

CachedAttention::CachedAttention(Ops& ops, const ModelConfig& config, DType dtype, Index capacity)
    : ops_(ops), capacity_(capacity), layers_(static_cast<std::size_t>(config.num_hidden_layers)) {
  const Index columns = config.num_key_value_heads * config.head_size();
  for (Layer& layer : layers_) {
    layer.keys = ops.device().empty(capacity, columns, dtype, MemoryCategory::activations);
    layer.values = ops.device().empty(capacity, columns, dtype, MemoryCategory::activations);
  }
}

void CachedAttention::truncate(Index length) {
  require(length >= 0 && length <= length_, "a cache of {} tokens cannot be cut to {}", length_, length);
  length_ = length;
  layer_ = 0;
}

std::vector<std::int32_t> CachedAttention::positions(Index length) const {
  std::vector<std::int32_t> next(static_cast<std::size_t>(length));
  std::iota(next.begin(), next.end(), static_cast<std::int32_t>(length_));
  return next;
}

Tensor CachedAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCounts& counts,
                                std::unique_ptr<State>& state) {
  require(counts.batch == 1, "the key/value cache holds one sequence, not {}", counts.batch);
  const Index total = length_ + counts.length;
  require(total <= capacity_,
          "the key/value cache has room for {} tokens; {} are in it and {} more do not fit", capacity_,
          length_, counts.length);

  // Rows behind length_ are free, so a pass that was broken off half-way leaves nothing behind that a later one would see.
  const Layer& layer = layers_[layer_];
  Device& device = ops_.device();
  device.copy(layer.keys.slice_rows(length_, counts.length).data(), k.data(), k.bytes());
  device.copy(layer.values.slice_rows(length_, counts.length).data(), v.data(), v.bytes());

  // Query i of this piece stands at length_ + i and sees the keys at 0 to length_ + i: the causal mask with an offset.
  const AttentionShape shape{.batch = 1,
                             .query_length = counts.length,
                             .key_length = total,
                             .heads = counts.heads,
                             .kv_heads = counts.kv_heads,
                             .head_size = counts.head_size,
                             .query_offset = length_,
                             .key_offset = 0};
  const Tensor out = device.empty(q.rows(), q.columns(), q.dtype(), MemoryCategory::activations);
  const Tensor lse =
      device.empty(q.rows(), counts.heads, accumulation_dtype(q.dtype()), MemoryCategory::workspace);
  ops_.attention_forward(shape, q, layer.keys.slice_rows(0, total), layer.values.slice_rows(0, total), out,
                         lse);

  if (++layer_ == layers_.size()) {
    layer_ = 0;
    length_ = total;
  }
  state.reset();
  return out;
}

void CachedAttention::backward(State& /*state*/, const Tensor& /*d_out*/, const Tensor& /*dq*/,
                               const Tensor& /*dk*/, const Tensor& /*dv*/) {
  fail("attention with a key/value cache generates only; it has no backward");
}

}  // namespace escalera
