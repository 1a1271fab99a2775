// The three kinds of units of a Llama-family model.
// defines: UnitContext, Embedding, Block, Head
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/model/attention_core.h"
#include "common/model/config.h"
#include "common/model/feed_forward.h"
#include "common/model/tensor_region.h"
#include "common/model/unit.h"

namespace escalera {

/// What all units of a model share. It must outlive them, and what it refers to must outlive it.
struct UnitContext {
  Ops& ops;                   ///< on whose device all tensors are
  const ModelConfig& config;  ///< of the whole model
  DType dtype;                ///< of weights and activations
  Recompute recompute;        ///< what the units keep
  TensorRegion& region;       ///< the chapter's, or that of one rank
  AttentionCore& attention;   ///< the chapter's, or that of one rank
  Tensor rope_table;          ///< [positions, head size], see Ops::rope_split_forward
  Tensor loss;                ///< [1, 1] float64: where the head adds the loss
};

/// The parameters of the vocabulary matrix: embedding or head.
Parameter vocabulary_parameter(const UnitContext& context, const std::string& name);

/// Rows of the table, one per token.
class Embedding final : public Unit {
 public:
  /// `table` is the number of the table in `bucket`.
  Embedding(UnitContext& context, Bucket& bucket, int table);
  Tensor forward(const Tensor& x, const MicroBatch& micro_batch, std::unique_ptr<UnitState>& state) override;
  Tensor backward(const Tensor& dy, const MicroBatch& micro_batch, UnitState& state, WeightWork& work) override;

 private:
  UnitContext& context_;
  Bucket& bucket_;
  int table_;
};

/// One transformer block: x + attention(norm(x)), then + ffn(norm(.)).
class Block final : public Unit {
 public:
  /// Makes the second half of a block and adds its parameters, whose names start with `prefix`, to `bucket` or to
  /// buckets of its own.
  using FeedForwardFactory =
      std::function<std::unique_ptr<FeedForward>(UnitContext& context, Bucket& bucket, const std::string& prefix)>;
  /// Adds the parameters of layer `layer` to `bucket`. `further_buckets` are those that `make_feed_forward` uses
  /// besides.
  Block(UnitContext& context, Bucket& bucket, Index layer, const FeedForwardFactory& make_feed_forward,
        std::span<Bucket* const> further_buckets);
  bool can_recompute() const override { return true; }
  Tensor forward(const Tensor& x, const MicroBatch& micro_batch, std::unique_ptr<UnitState>& state) override;
  Tensor backward(const Tensor& dy, const MicroBatch& micro_batch, UnitState& state, WeightWork& work) override;

 private:
  struct State;
  LinearRef query_key_value() const;
  LinearRef output() const;
  /// A norm's output again, where it was not kept.
  Tensor normed(const Tensor& kept, const Tensor& x, const Tensor& rstd, int norm) const;

  UnitContext& context_;
  Bucket& bucket_;
  Slice query_heads_, kv_heads_;
  int input_norm_, post_attention_norm_, query_, value_, output_;
  std::unique_ptr<FeedForward> feed_forward_;
};

/// Final norm, vocabulary projection and cross-entropy.
class Head final : public Unit {
 public:
  /// The norm is added to `bucket`; `vocabulary` and `table` say where the projection is (the embedding's if tied).
  Head(UnitContext& context, Bucket& bucket, Bucket& vocabulary, int table);
  Tensor forward(const Tensor& x, const MicroBatch& micro_batch, std::unique_ptr<UnitState>& state) override;
  Tensor backward(const Tensor& dy, const MicroBatch& micro_batch, UnitState& state, WeightWork& work) override;
  /// The logits [T, V] alone, for generation. Without padding columns only where there is one rank.
  Tensor logits(const Tensor& x) const;

 private:
  struct State;
  /// Turns some rows of logits into their gradient, and adds their loss.
  void loss_and_gradient(const Tensor& logits, const MicroBatch& micro_batch,
                         std::span<const std::int32_t> targets) const;
  const Parameter& projection() const { return vocabulary_.parameters[static_cast<std::size_t>(table_)]; }

  UnitContext& context_;
  Bucket& bucket_;
  Bucket& vocabulary_;
  int norm_;
  int table_;
};

}  // namespace escalera
