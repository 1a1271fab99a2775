// Seam: how queries meet keys. One rank holds whole sequences, so here it is one call of the attention operation.
// defines: HeadCounts, AttentionCore, LocalAttention
#pragma once

#include <memory>
#include <vector>

#include "common/ops/ops.h"

namespace escalera {

/// The heads on this rank and the view of the sequences: rows of q, k, v are [batch * length].
struct HeadCounts {
  Index batch = 0;      ///< sequences of the micro-batch
  Index length = 0;     ///< tokens of each sequence on this rank
  Index heads = 0;      ///< query heads; a multiple of kv_heads
  Index kv_heads = 0;   ///< key/value heads
  Index head_size = 0;  ///< columns of each head
};

/// Causal attention over sequences of which this rank may hold a part.
class AttentionCore {
 public:
  /// What forward keeps for backward; its shape is the core's own business.
  struct State {
    virtual ~State() = default;
  };
  virtual ~AttentionCore() = default;

  /// Global positions of this rank's tokens within a sequence of `length` tokens, in local order. Embedding, labels,
  /// masks and RoPE follow it.
  virtual std::vector<std::int32_t> positions(Index length) const = 0;
  /// Returns the output [batch * length, heads * head_size] and sets `state`.
  virtual Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCounts& counts,
                         std::unique_ptr<State>& state) = 0;
  /// Fills dq, dk, dv (shapes of q, k, v) from what forward kept.
  virtual void backward(State& state, const Tensor& d_out, const Tensor& dq, const Tensor& dk, const Tensor& dv) = 0;
};

/// Attention on one rank.
class LocalAttention final : public AttentionCore {
 public:
  /// `ops` must outlive it.
  explicit LocalAttention(Ops& ops) : ops_(ops) {}
  std::vector<std::int32_t> positions(Index length) const override;
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCounts& counts,
                 std::unique_ptr<State>& state) override;
  void backward(State& state, const Tensor& d_out, const Tensor& dq, const Tensor& dk, const Tensor& dv) override;

 private:
  Ops& ops_;
};

}  // namespace escalera
