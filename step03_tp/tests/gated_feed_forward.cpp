#include "step03_tp/tests/gated_feed_forward.h"

namespace escalera {
namespace {

constexpr double coefficient = 0.3;

struct GatedState final : UnitState {
  Tensor up;      // [T, F]
  Tensor gate;    // [T, 1]
  Tensor scaled;  // [T, F]
};

/// out = rows of x times the row's factor.
void scale_rows(const Tensor& x, const Tensor& factors, const Tensor& out) {
  for (Index row = 0; row < x.rows(); row++) {
    for (Index column = 0; column < x.columns(); column++) {
      const Index at = row * x.columns() + column;
      out.as<double>()[at] = x.as<double>()[at] * factors.as<double>()[row];
    }
  }
}

}  // namespace

GatedFeedForward::GatedFeedForward(UnitContext& context, Bucket& bucket, const std::string& prefix,
                                   bool scaled)
    : context_(context), bucket_(bucket), scaled_(scaled) {
  const Index hidden = context.config.hidden_size, width = context.config.intermediate_size;
  const TensorRegion& region = context.region;
  const Initialization matrix{Initialization::Kind::normal, context.config.initializer_range};
  using Split = Parameter::Split;
  gate_ = bucket.add({prefix + "mlp.gate.weight", 1, hidden, Split::none, region.inside(hidden), matrix});
  up_ = bucket.add({prefix + "mlp.up_proj.weight", width, hidden, Split::rows, region.split(width), matrix});
  down_ = bucket.add(
      {prefix + "mlp.down_proj.weight", hidden, width, Split::columns, region.split(width), matrix});
}

Tensor GatedFeedForward::empty(Index rows, Index columns) const {
  return context_.ops.device().empty(rows, columns, DType::float64, MemoryCategory::workspace);
}

Tensor GatedFeedForward::forward(const Tensor& x, const MicroBatch& /*micro_batch*/,
                                 std::unique_ptr<UnitState>& state) {
  Ops& ops = context_.ops;
  auto kept = std::make_unique<GatedState>();
  const Tensor whole = context_.region.enter(x), down = bucket_.weight(down_);
  kept->up = empty(whole.rows(), down.columns());
  kept->gate = empty(whole.rows(), 1);
  kept->scaled = empty(whole.rows(), down.columns());
  ops.linear_forward(whole, bucket_.weight(up_), kept->up);
  ops.linear_forward(whole, bucket_.weight(gate_), kept->gate);
  scale_rows(kept->up, kept->gate, kept->scaled);
  const Tensor y =
      context_.region.partial_sum(whole.rows(), down.rows(), DType::float64, MemoryCategory::workspace);
  ops.linear_forward(kept->scaled, down, y);
  state = std::move(kept);
  return context_.region.exit(y, MemoryCategory::workspace);
}

Tensor GatedFeedForward::backward(const Tensor& dy, const Tensor& x, const MicroBatch& micro_batch,
                                  UnitState& state, WeightWork& work) {
  Ops& ops = context_.ops;
  const auto& kept = dynamic_cast<GatedState&>(state);
  const Tensor whole_dy = context_.region.exit_backward(dy), whole = context_.region.enter(x);
  const Tensor d_scaled = empty(whole.rows(), kept.up.columns()),
               d_up = empty(whole.rows(), kept.up.columns());
  ops.linear_backward_input(whole_dy, bucket_.weight(down_), d_scaled);
  work.add_linear(whole_dy, kept.scaled, bucket_.gradient(down_));
  scale_rows(d_scaled, kept.gate, d_up);

  // From this rank's columns comes a part of the gate's gradient; the auxiliary loss gives every rank the whole of its own.
  const Tensor d_gate = empty(whole.rows(), 1);
  const double share = scaled_ ? context_.region.share() : 1.0;
  for (Index row = 0; row < whole.rows(); row++) {
    double sum = share * 2 * coefficient * micro_batch.loss_scale * kept.gate.as<double>()[row];
    for (Index column = 0; column < kept.up.columns(); column++) {
      const Index at = row * kept.up.columns() + column;
      sum += d_scaled.as<double>()[at] * kept.up.as<double>()[at];
    }
    d_gate.as<double>()[row] = sum;
  }
  const Tensor partial = empty(whole.rows(), whole.columns());
  ops.linear_backward_input(d_up, bucket_.weight(up_), partial);
  ops.linear_backward_input(d_gate, bucket_.weight(gate_), partial, true);
  work.add_linear(d_up, whole, bucket_.gradient(up_));
  work.add_linear(d_gate, whole, bucket_.gradient(gate_));
  return context_.region.enter_backward(partial);
}

}  // namespace escalera
