// Step 2, the idea: what data parallelism keeps on every rank is shared out, and is put together only while it is needed.
// new: FullySharded, a UnitHooks that gathers weights around each visit of a unit and leaves each rank its part of the gradient
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "common/comm/communicator.h"
#include "common/model/model.h"

namespace escalera {

/// What is shared out, and how eagerly it is moved.
struct ShardingSettings {
  int zero = 3;  ///< 0: nothing; 1: optimizer states; 2: and gradients; 3: and parameters
  Index prefetch =
      1;  ///< visits ahead for which weights are gathered, and behind which reductions may lag; 0: blocking
  bool reshard_after_forward =
      true;  ///< ZeRO-3: give weights back after each visit; else keep them until their last one
  std::optional<DType>
      reduce_dtype;  ///< type in which gradients travel; none: the type they are accumulated in
};

/// ZeRO (Rajbhandari et al. 2020) on flat units. Each bucket is cut into as many equal parts as `shard` has ranks (the last ones
/// padded), and rank r updates part r. `replicas` are the ranks of other shard groups that hold the same part: plain data
/// parallelism is a shard group of one, full sharding a replica group of one, and hybrid sharding (HSDP) lies between.
///
///     FullySharded fsdp(shard, replicas, settings);
///     Model model(ops, config, options, stage, {.hooks = &fsdp});
///     fsdp.shard(model);     // before model.allocate() and model.initialize()
///     fsdp.after_update();   // the other parts of the first weights
///     ... begin_step, forward, backward ...
///     fsdp.finish_step();    // every rank has its part of the sum
///     optimizer->update(...);
///     fsdp.after_update();   // and gets the other parts of the weights
class FullySharded final : public UnitHooks {
 public:
  /// The groups must outlive this object.
  FullySharded(Communicator& shard, Communicator& replicas, const ShardingSettings& settings);

  /// Cuts the buckets of a model that is not allocated yet, and that must live as long as visits are made.
  void shard(Model& model);

  void announce(std::span<Unit* const> visits) override;
  /// Gathers weights for this visit and the next ones; returns when those of this visit are there.
  /// @{
  void before_forward(Unit& unit) override;
  void before_backward(Unit& unit) override;
  /// @}
  /// Gives weights back that no coming visit needs soon.
  /// @{
  void after_forward(Unit& unit) override;
  void after_backward(Unit& unit) override;
  /// @}
  /// Starts reducing the gradients of the owned buckets: in ZeRO-2 and 3 for every micro-batch, otherwise for the last.
  void after_weight_gradients(Unit& unit, bool last_micro_batch) override;

  /// Blocks until gradient_shard of every bucket is the sum over all ranks. To be called once per step, after the last backward.
  void finish_step();
  /// To be called when weight shards have changed. ZeRO-1 and 2 start gathering what all ranks hold whole; ZeRO-3 gathers around
  /// visits anyway.
  void after_update();
  /// Blocks until the weights of after_update() are there, as the next visits would.
  void finish_gathers();

  /// The most gathered weights that were there at once, in ZeRO-3: bytes, and the fewest units that use them all.
  /// @{
  Index peak_gathered() const { return peak_bytes_; }
  Index peak_gathered_units() const { return peak_units_; }
  /// @}

 private:
  struct Gathered {
    Tensor weights;  // [1, flat_size]
    Work work;
  };
  struct Reduction {  // over the shard group
    Bucket* bucket;
    Index visit;    // behind whose weight gradients it was started
    bool last;      // micro-batch of the step
    Tensor buffer;  // [1, flat_size]
    Tensor part;    // [1, shard_size] of it: where this rank's sum arrives
    Work work;
  };
  struct ReplicaSum {
    Bucket* bucket;
    Tensor buffer;  // [1, shard_size], gradient_shard itself unless it travels in another type
    Work work;
  };

  void begin_visit(Unit& unit);
  void end_visit();
  void gather(Bucket& bucket);
  bool needed_soon(const Bucket& bucket) const;
  void reduce(Bucket& bucket, bool last);
  void retire_reductions(Index started_before);
  void finish(Reduction& reduction);
  void sum_over_replicas(Bucket& bucket);
  void finish(ReplicaSum& sum);
  Tensor as_sent(const Tensor& gradients) const;
  void note_peak();

  Communicator& shard_;
  Communicator& replicas_;
  ShardingSettings settings_;
  Model* model_ = nullptr;

  std::vector<Unit*> visits_;             // announced
  Index begun_ = 0;                       // of visits_
  std::map<Bucket*, Gathered> gathered_;  // ZeRO-3: alive; ZeRO-1 and 2: by the last after_update()
  std::map<Bucket*, int> open_;           // ZeRO-2 and 3: backwards whose weight gradients are still to come
  std::deque<Reduction> reductions_;      // in flight, oldest first
  std::vector<ReplicaSum> replica_sums_;  // in flight
  Index peak_bytes_ = 0, peak_units_ = 0;
  std::size_t peak_buckets_ = 0;
};

/// Throws UsageError unless `settings` and a shard group of `shard_size` out of `ranks` data-parallel ranks go together, naming
/// what clashes and a value that works. `dtype` is the model's.
void validate_sharding(const ShardingSettings& settings, std::optional<int> shard_size, int ranks,
                       DType dtype);

}  // namespace escalera
