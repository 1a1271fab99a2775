#include "common/model/attention_core.h"

#include <numeric>

namespace escalera {
namespace {

struct LocalState final : AttentionCore::State {
  AttentionShape shape;
  Tensor q, k, v, out;  // [T, heads or kv_heads * head_size]
  Tensor lse;           // [T, heads] wide
};

}  // namespace

std::vector<std::int32_t> LocalAttention::positions(Index length) const {
  std::vector<std::int32_t> all(static_cast<std::size_t>(length));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Tensor LocalAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCounts& counts,
                               std::unique_ptr<State>& state) {
  auto kept = std::make_unique<LocalState>();
  kept->shape = {counts.batch, counts.length, counts.length, counts.heads, counts.kv_heads, counts.head_size};
  kept->q = q;
  kept->k = k;
  kept->v = v;
  kept->out = ops_.device().empty(q.rows(), q.columns(), q.dtype(), MemoryCategory::activations);
  kept->lse = ops_.device().empty(q.rows(), counts.heads, accumulation_dtype(q.dtype()), MemoryCategory::activations);
  ops_.attention_forward(kept->shape, q, k, v, kept->out, kept->lse);
  Tensor out = kept->out;
  state = std::move(kept);
  return out;
}

void LocalAttention::backward(State& state, const Tensor& d_out, const Tensor& dq, const Tensor& dk,
                              const Tensor& dv) {
  const auto& kept = dynamic_cast<LocalState&>(state);
  ops_.attention_backward(kept.shape, kept.q, kept.k, kept.v, kept.out, kept.lse, d_out, dq, dk, dv);
}

}  // namespace escalera
