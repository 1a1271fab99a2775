#include "step01_dp/tests/parity_run.h"

#include <algorithm>

namespace escalera {
namespace {

constexpr std::string_view dropped_unit = "model.layers.1";

/// DataParallel with one thing wrong.
class Faulty final : public UnitHooks {
 public:
  Faulty(DataParallel& hooks, Communicator& group, Ops& ops, Fault fault, Index accumulation)
      : hooks_(hooks), group_(group), ops_(ops), fault_(fault), accumulation_(accumulation) {}

  void announce(std::span<Unit* const> visits) override {
    visits_per_micro_batch_ = static_cast<Index>(visits.size()) / 2 / accumulation_;
    visit_ = 0;
  }
  void after_weight_gradients(Unit& unit, bool last) override {
    if (fault_ == Fault::wrong_micro_batch) last = visit_++ < visits_per_micro_batch_;
    if (fault_ == Fault::dropped_gradient && last && unit.name() == dropped_unit) {
      const Bucket& bucket = *unit.owns().front();
      dropped_ = bucket.gradient(3);
      before_ = to_host(ops_.device(), dropped_);  // before its sum may begin
    }
    hooks_.after_weight_gradients(unit, last);
  }
  void finish_step(Model& model) {
    hooks_.finish_step();
    if (fault_ == Fault::averaged) ops_.scale(model.flat_gradients(), 1.0 / group_.size());
    if (fault_ == Fault::dropped_gradient) from_host(ops_.device(), before_, dropped_);
  }

 private:
  DataParallel& hooks_;
  Communicator& group_;
  Ops& ops_;
  Fault fault_;
  Index accumulation_;
  Index visits_per_micro_batch_ = 0, visit_ = 0;
  Tensor dropped_;
  std::vector<double> before_;
};

void take_local_mean(MicroBatch& micro_batch, Index parts) {
  const auto count = std::count_if(micro_batch.targets.begin(), micro_batch.targets.end(), [](auto t) { return t >= 0; });
  micro_batch.loss_scale = 1.0 / static_cast<double>(std::max<Index>(count, 1) * parts);
}

}  // namespace

RunRecord run_case(Communicator& world, const DpCase& test, Trace* trace) {
  const std::unique_ptr<Ops> ops = make_cpu_ops({});
  return run_case(world, world, *ops, test, trace);
}

RunRecord run_case(Communicator& world, Communicator& group, Ops& ops, const DpCase& test, Trace* trace) {
  ops.device().set_poison(true);
  const ModelConfig config = parity_model(test.tied);
  DataParallel data_parallel(group, test.mode, test.bucket_bytes);
  Faulty hooks(data_parallel, group, ops, test.fault, test.accumulation);
  Model model(ops, config, {test.dtype, test.recompute, 0}, Stage::whole(config), {.hooks = &hooks});
  model.set_trace(trace);
  model.allocate();
  initialize_rounded(model, parity_seed, test.rounding);
  std::function<void(MicroBatch&)> adjust;
  if (test.fault == Fault::local_mean) {
    adjust = [&](MicroBatch& micro_batch) { take_local_mean(micro_batch, group.size() * test.accumulation); };
  }
  return run_parity(model, {.world = world,
                            .parts = group.size(),
                            .part = group.rank(),
                            .accumulation = test.accumulation,
                            .adjust = adjust,
                            .reduce = [&] { hooks.finish_step(model); },
                            .sum_loss = [&](double loss) { return group.sum(loss); }});
}

}  // namespace escalera
