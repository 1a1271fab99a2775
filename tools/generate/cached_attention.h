// Attention with a memory: keys and values of the tokens seen so far, so that a new token costs one row and not a whole pass
// over the text. Fills the AttentionCore seam; the model itself does not know that it generates.
// defines: CachedAttention
#pragma once

#include <vector>

#include "common/model/attention_core.h"
#include "common/model/config.h"

namespace escalera {

/// Attention of one sequence (batch 1) that arrives in pieces. Each forward pass of the model appends the keys and values of
/// its tokens to the cache of every layer, and its queries see all that is there. Keys are stored after the rotary
/// embedding: a token's rotation depends on its own position only, so what is cached stays valid.
///
/// The model calls forward() once per layer, in order; the core counts these calls to know which layer it serves, and the
/// last layer completes the pass. Generation has no backward.
class CachedAttention final : public AttentionCore {
 public:
  /// Room for `capacity` tokens of `config`'s model: 2 * layers * capacity * kv_heads * head_size elements of `dtype`, booked
  /// as activations. `ops` must outlive it.
  CachedAttention(Ops& ops, const ModelConfig& config, DType dtype, Index capacity);

  /// Tokens in the cache.
  Index length() const { return length_; }
  /// Tokens that fit.
  Index capacity() const { return capacity_; }
  /// Forgets all tokens but the first `length`, to continue from there in another way.
  void truncate(Index length);

  /// Positions of the next `length` tokens: they follow those in the cache.
  std::vector<std::int32_t> positions(Index length) const override;
  /// Throws Error if the tokens do not fit, before it stores anything.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCounts& counts,
                 std::unique_ptr<State>& state) override;
  /// Throws Error: nothing is kept for it.
  void backward(State& state, const Tensor& d_out, const Tensor& dq, const Tensor& dk,
                const Tensor& dv) override;

 private:
  struct Layer {
    Tensor keys, values;  // [capacity, kv_heads * head_size]
  };

  Ops& ops_;
  Index capacity_;
  Index length_ = 0;       // tokens in the cache of every layer
  std::size_t layer_ = 0;  // that the next forward() serves
  std::vector<Layer> layers_;
};

}  // namespace escalera
