// The optimizers: AdamW and SGD over the part of each bucket that this rank updates.
// defines: OptimizerSettings, Optimizer, make_optimizer(), clip_factor()
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/model/parameter.h"
#include "common/ops/ops.h"

namespace escalera {

/// What stays the same over a run.
struct OptimizerSettings {
  /// AdamW, or plain SGD without momentum.
  enum class Kind { adamw, sgd } kind = Kind::adamw;  ///< the update rule
  double beta1 = 0.9;                                 ///< AdamW: decay of the first moment
  double beta2 = 0.95;                                ///< AdamW: decay of the second moment
  double epsilon = 1e-8;                              ///< AdamW: added to the root of the second moment
  double weight_decay = 0.1;                          ///< of the parameters that decay
};

/// Updates master weights from gradients, and the model's weights with them. Its states live on the model's device, in
/// the category `optimizer`.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update of every bucket's shard. Gradients are multiplied by `gradient_scale` first (the clip factor); they are
  /// not changed. Parameters without decay are not decayed.
  void update(double learning_rate, double gradient_scale);
  /// Updates so far.
  Index steps() const { return steps_; }

 protected:
  /// `ops` and `buckets`, which must be allocated, must outlive it.
  Optimizer(Ops& ops, std::deque<Bucket>& buckets, const OptimizerSettings& settings)
      : ops_(ops), buckets_(buckets), settings_(settings) {}

  /// A run of elements of one bucket's shard with the same decay.
  struct Run {
    std::size_t bucket = 0;  ///< number of the bucket
    Index begin = 0;         ///< within the shard
    /// Views [1, elements]. `weights` is empty where master holds the weights themselves.
    /// @{
    Tensor master, gradient, weights;
    /// @}
    double weight_decay = 0;  ///< 0 for parameters that do not decay
  };
  /// One update of a run, number steps_ (counted from 1).
  virtual void update_run(const Run& run, double learning_rate, double gradient_scale) = 0;

  Ops& ops_;                     ///< on whose device states and weights are
  std::deque<Bucket>& buckets_;  ///< of the model
  OptimizerSettings settings_;   ///< of the run
  Index steps_ = 0;              ///< updates, the running one included
};

/// The optimizer that `settings` name, for allocated buckets. Ops and buckets must outlive it.
std::unique_ptr<Optimizer> make_optimizer(Ops& ops, std::deque<Bucket>& buckets, const OptimizerSettings& settings);

/// What gradients of norm `norm` are multiplied by so that their norm is at most `limit`: limit / norm if norm > limit > 0,
/// else 1.
double clip_factor(double norm, double limit);

}  // namespace escalera
