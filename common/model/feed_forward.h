// Seam: the second half of a block. Dense SwiGLU here; a chapter puts routed experts in its place.
// defines: FeedForward, DenseFeedForward
#pragma once

#include <memory>
#include <string>

#include "common/model/config.h"
#include "common/model/tensor_region.h"
#include "common/model/unit.h"

namespace escalera {

/// y = ffn(x) for x [rows, H], normed already. It enters and leaves the tensor region itself.
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  /// y, a new tensor [rows, H]; sets `state`, which backward gets.
  virtual Tensor forward(const Tensor& x, const MicroBatch& micro_batch, std::unique_ptr<UnitState>& state) = 0;
  /// Gradient of x; `x` is forward's input, kept or computed again by the block.
  virtual Tensor backward(const Tensor& dy, const Tensor& x, const MicroBatch& micro_batch, UnitState& state,
                          WeightWork& work) = 0;
};

/// down(silu(gate(x)) * up(x)), gate and up as one GEMM.
class DenseFeedForward final : public FeedForward {
 public:
  /// Adds its three matrices to `bucket` under `prefix` + "mlp.". The bucket and the region must outlive it.
  DenseFeedForward(Ops& ops, TensorRegion& region, Bucket& bucket, const ModelConfig& config, Recompute recompute,
                   const std::string& prefix);
  Tensor forward(const Tensor& x, const MicroBatch& micro_batch, std::unique_ptr<UnitState>& state) override;
  Tensor backward(const Tensor& dy, const Tensor& x, const MicroBatch& micro_batch, UnitState& state,
                  WeightWork& work) override;

 private:
  Ops& ops_;
  TensorRegion& region_;
  Bucket& bucket_;
  bool keep_activated_;
  int gate_, up_, down_;
};

}  // namespace escalera
