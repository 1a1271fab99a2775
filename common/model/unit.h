// A unit: the piece of a model between two hooks (embedding, one block, head).
// defines: UnitState, Unit, UnitHooks
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/model/micro_batch.h"
#include "common/model/parameter.h"
#include "common/model/weight_work.h"

namespace escalera {

/// What a unit keeps of one micro-batch between forward and backward.
struct UnitState {
  virtual ~UnitState() = default;
};

/// One step of the model. forward and backward of the same micro-batch get the same state; several micro-batches may be
/// in flight, each with its own.
class Unit {
 public:
  /// `name` is what name() returns; a derived class lists its buckets.
  explicit Unit(std::string name) : name_(std::move(name)) {}
  virtual ~Unit() = default;
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  /// Its module in Hugging Face's names, "model.layers.3"; also in the trace.
  const std::string& name() const { return name_; }
  /// The buckets whose weights a visit of this unit reads.
  const std::vector<Bucket*>& uses() const { return uses_; }
  /// The buckets whose gradients are complete when this unit's weight gradients are. A tied matrix is used by two units
  /// and owned by the one whose backward comes last.
  const std::vector<Bucket*>& owns() const { return owns_; }
  /// Whether full recompute applies: the unit can be run again from its input alone.
  virtual bool can_recompute() const { return false; }

  /// Output from input x [rows, H] (no tensor for the first unit; the last returns none: it adds to the loss).
  virtual Tensor forward(const Tensor& x, const MicroBatch& micro_batch, std::unique_ptr<UnitState>& state) = 0;
  /// Gradient of the input from that of the output; weight gradients of linears go to `work`, those of norms are added
  /// here.
  virtual Tensor backward(const Tensor& dy, const MicroBatch& micro_batch, UnitState& state, WeightWork& work) = 0;

 protected:
  /// Filled by the constructor of the derived class; the model holds the buckets.
  /// @{
  std::vector<Bucket*> uses_, owns_;
  /// @}

 private:
  std::string name_;
};

/// Seam: what happens around a unit. Data parallelism reduces gradients here, sharding gathers and releases weights.
/// The base class does nothing: one rank has all weights and all gradients.
class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  /// The visits to come, in order, so that weights can be fetched ahead: every forward and backward of a step, or the forwards of
  /// an evaluation. Not called for generation, which visits units as it goes.
  virtual void announce(std::span<Unit* const> /*visits*/) {}
  /// Around the forward of a visit, and before its backward: when a `before` returns, the weights of
  /// the used buckets are there.
  /// @{
  virtual void before_forward(Unit&) {}
  virtual void after_forward(Unit&) {}
  virtual void before_backward(Unit&) {}
  /// @}
  /// After the input half: the unit's weights are no longer needed by this visit; gradients may still be to come.
  virtual void after_backward(Unit&) {}
  /// After the weight half: this micro-batch has added all it has to the gradients of the unit's owned buckets.
  virtual void after_weight_gradients(Unit&, bool /*last_micro_batch*/) {}
};

}  // namespace escalera
