// A feed-forward half with what step 6's router will have: a parameter that every rank holds and uses inside the region, and an
// auxiliary loss that every rank computes alike.
// defines: GatedFeedForward
#pragma once

#include "common/model/units.h"

namespace escalera {

/// y = g(x W_up^T) W_down^T with each row scaled by its gate x . w, and coefficient * (gate)^2 per token added to the loss. In
/// float64 on the CPU.
class GatedFeedForward final : public FeedForward {
 public:
  /// `scaled`: whether the gradient of the auxiliary loss is scaled by the region's share() before it joins what the ranks sum.
  GatedFeedForward(UnitContext& context, Bucket& bucket, const std::string& prefix, bool scaled);
  Tensor forward(const Tensor& x, const MicroBatch& micro_batch, std::unique_ptr<UnitState>& state) override;
  Tensor backward(const Tensor& dy, const Tensor& x, const MicroBatch& micro_batch, UnitState& state,
                  WeightWork& work) override;

 private:
  Tensor empty(Index rows, Index columns) const;

  UnitContext& context_;
  Bucket& bucket_;
  bool scaled_;
  int gate_, up_, down_;
};

}  // namespace escalera
