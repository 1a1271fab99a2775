#include "common/model/feed_forward.h"

#include <cmath>

namespace escalera {
namespace {

struct DenseState final : UnitState {
  Tensor gate_up;    // [T, 2F]
  Tensor activated;  // [T, F], only if it is kept
};

}  // namespace

DenseFeedForward::DenseFeedForward(Ops& ops, TensorRegion& region, Bucket& bucket, const ModelConfig& config,
                                   Recompute recompute, const std::string& prefix)
    : ops_(ops), region_(region), bucket_(bucket), keep_activated_(recompute != Recompute::selective) {
  const Index hidden = config.hidden_size, width = config.intermediate_size;
  const Slice mine = region.split(width);
  const Initialization matrix{Initialization::Kind::normal, config.initializer_range};
  const double layers = static_cast<double>(config.num_hidden_layers);
  const Initialization residual{Initialization::Kind::normal, config.initializer_range / std::sqrt(2 * layers)};
  gate_ = bucket.add({prefix + "mlp.gate_proj.weight", width, hidden, Parameter::Split::rows, mine, matrix});
  up_ = bucket.add({prefix + "mlp.up_proj.weight", width, hidden, Parameter::Split::rows, mine, matrix});
  down_ = bucket.add({prefix + "mlp.down_proj.weight", hidden, width, Parameter::Split::columns, mine, residual});
}

Tensor DenseFeedForward::forward(const Tensor& x, const MicroBatch& /*micro_batch*/,
                                 std::unique_ptr<UnitState>& state) {
  auto kept = std::make_unique<DenseState>();
  kept->gate_up = region_.column_linear(x, {bucket_.merged_weight(gate_, up_), {}}, MemoryCategory::activations);
  const Tensor activated =
      ops_.device().empty(kept->gate_up.rows(), kept->gate_up.columns() / 2, x.dtype(),
                          keep_activated_ ? MemoryCategory::activations : MemoryCategory::workspace);
  ops_.swiglu_forward(kept->gate_up, activated);
  if (keep_activated_) kept->activated = activated;
  state = std::move(kept);
  return region_.row_linear(activated, {bucket_.weight(down_), {}}, MemoryCategory::workspace);
}

Tensor DenseFeedForward::backward(const Tensor& dy, const Tensor& x, const MicroBatch& /*micro_batch*/,
                                  UnitState& state, WeightWork& work) {
  auto& kept = dynamic_cast<DenseState&>(state);
  Tensor activated = kept.activated;
  if (activated.empty()) {
    activated = ops_.device().empty(kept.gate_up.rows(), kept.gate_up.columns() / 2, dy.dtype(),
                                    MemoryCategory::workspace);
    ops_.swiglu_forward(kept.gate_up, activated);
  }
  const Tensor d_activated =
      region_.row_linear_backward(dy, activated, {bucket_.weight(down_), bucket_.gradient(down_)}, work);
  // The gradient takes the place of gate and up, which nobody needs any more.
  ops_.swiglu_backward(kept.gate_up, d_activated, kept.gate_up, {});
  return region_.column_linear_backward(
      kept.gate_up, x, {bucket_.merged_weight(gate_, up_), bucket_.merged_gradient(gate_, up_)}, work);
}

}  // namespace escalera
