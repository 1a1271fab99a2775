// The model of one rank: its units, their buckets, and one pass forward and backward.
// defines: Stage, Seams, ModelOptions, InFlight, Model
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "common/model/units.h"

namespace escalera {

/// Which units a rank builds: a run of layers, and what stands before and behind them.
struct Stage {
  Index first_layer = 0;  ///< number in the whole model
  Index layers = 0;       ///< may be 0
  bool embedding = true;  ///< whether it takes tokens; else activations of the stage before
  bool head = true;       ///< whether it ends in the loss; else it hands activations on
  /// The whole model.
  static Stage whole(const ModelConfig& config) { return {0, config.num_hidden_layers, true, true}; }
};

/// What a chapter puts in place of the one-rank defaults; null keeps the default. All must outlive the model.
struct Seams {
  UnitHooks* hooks = nullptr;              ///< around each unit: gradient reduction, gathered weights
  TensorRegion* region = nullptr;          ///< around each pair of linears: layers split over ranks
  AttentionCore* attention = nullptr;      ///< where queries meet keys: sequences split over ranks
  Block::FeedForwardFactory feed_forward = {};  ///< empty: DenseFeedForward
};

/// How the model computes.
struct ModelOptions {
  DType dtype = DType::float32;           ///< of weights and activations
  Recompute recompute = Recompute::none;  ///< what backward computes again
  Index max_positions = 0;                ///< rows of the RoPE table; 0: the configuration's max_position_embeddings
};

/// One micro-batch between its forward and the end of its backward.
struct InFlight {
  std::vector<std::unique_ptr<UnitState>> states;  ///< per unit
  std::vector<Tensor> inputs;                      ///< per unit, where it will be run again
  std::vector<WeightWork> deferred;                ///< per unit, after a backward with deferred weight gradients
};

/// A Llama-family model, or the stage of one that this rank holds. Memory for weights and gradients is one flat buffer
/// each, units side by side in order, so that neighbours can be reduced in one call.
class Model {
 public:
  /// Declares the parameters; allocate() and initialize() follow. `ops` and the seams must outlive the model.
  Model(Ops& ops, const ModelConfig& config, const ModelOptions& options, const Stage& stage, const Seams& seams = {});

  /// Flat buffers for weights, gradients and, in bfloat16, master weights, as far as each bucket is to be held. Padding and
  /// gradients start at zero.
  void allocate();
  /// Every element of this rank's shards from (seed, name, position); the same in every layout. Drawn by `threads` threads,
  /// which matters for billions. Who shards gathers the rest.
  void initialize(std::uint64_t seed, int threads = 1);

  /// What the constructor was given; attention() is the default one where the seam was null.
  /// @{
  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  Ops& ops() { return ops_; }
  AttentionCore& attention() { return *attention_; }
  /// @}
  /// The units of the stage, in the order of forward.
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  /// In the order of the units. Their addresses stay; their tensors are there after allocate().
  /// @{
  std::deque<Bucket>& buckets() { return buckets_; }
  const std::deque<Bucket>& buckets() const { return buckets_; }
  /// @}
  /// All gradients and all weights that this rank holds between visits, each as one matrix [1, elements].
  /// @{
  const Tensor& flat_gradients() const { return flat_gradients_; }
  const Tensor& flat_weights() const { return flat_weights_; }
  /// @}

  /// Records a span per unit and direction on the row "compute". Null for none.
  void set_trace(Trace* trace) { trace_ = trace; }

  /// Sets the gradients held and the loss to zero and announces the visits of a step of `micro_batches` to the hooks (one forward and
  /// one backward each, in turn).
  void begin_step(Index micro_batches);
  /// Runs the units forward. `x` is the stage's input (none for the first). Returns its output (none from the last, which
  /// adds loss_scale * sum of token losses to the loss instead).
  Tensor forward(const Tensor& x, const MicroBatch& micro_batch, InFlight& in_flight);
  /// Runs the units backward from the gradient of the output and returns that of the input. `last_micro_batch` tells the
  /// hooks that gradients are complete. With `defer_weights` the weight halves wait for weight_gradients(), which then
  /// says so instead.
  Tensor backward(const Tensor& dy, const MicroBatch& micro_batch, InFlight& in_flight, bool last_micro_batch,
                  bool defer_weights = false);
  /// The weight halves that backward deferred, from the last unit to the first.
  void weight_gradients(InFlight& in_flight, bool last_micro_batch);

  /// The loss added up since begin_step() on this rank. Blocks until the device has finished.
  double loss();
  /// Loss of one micro-batch without backward and without touching loss(): for evaluation. One-stage models only.
  double evaluate(const MicroBatch& micro_batch);
  /// Logits [1, V] after the last of `tokens` (one sequence), for generation; the attention core decides which earlier
  /// tokens it sees. `positions` are those of the tokens.
  Tensor next_token_logits(std::span<const std::int32_t> tokens, std::span<const std::int32_t> positions);

  /// Sum of squares of the gradients that this rank counts (all of them on one rank), after every reduction. Blocks.
  double squared_gradient_norm();

 private:
  Tensor run_forward(const Tensor& x, const MicroBatch& micro_batch, InFlight& in_flight, std::size_t units,
                     bool keep);

  Ops& ops_;
  ModelConfig config_;
  ModelOptions options_;
  UnitHooks no_hooks_;
  std::unique_ptr<TensorRegion> own_region_;
  std::unique_ptr<AttentionCore> own_attention_;
  UnitHooks* hooks_;
  AttentionCore* attention_;
  std::unique_ptr<UnitContext> context_;
  std::deque<Bucket> buckets_;  // a deque, so that addresses stay
  std::vector<std::unique_ptr<Unit>> units_;
  Head* head_ = nullptr;
  Trace* trace_ = nullptr;
  Tensor flat_weights_, flat_gradients_, flat_master_;
};

}  // namespace escalera
