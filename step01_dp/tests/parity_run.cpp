#include "step01_dp/tests/parity_run.h"

#include <algorithm>
#include <cmath>

#include "common/optim/optimizer.h"

namespace escalera {
namespace {

constexpr std::uint64_t seed = 42;
constexpr double learning_rate = 0.5, clip = 0.05;  // the norm is above 1, so clipping is active
constexpr Index steps = 2;
constexpr std::string_view dropped_unit = "model.layers.1";

/// DataParallel with one thing wrong.
class Faulty final : public UnitHooks {
 public:
  Faulty(DataParallel& hooks, Communicator& group, Ops& ops, Fault fault, Index accumulation)
      : hooks_(hooks), group_(group), ops_(ops), fault_(fault), accumulation_(accumulation) {}

  void begin_step(std::span<Unit* const> visits) override { visits_per_micro_batch_ = static_cast<Index>(visits.size()) / 2 / accumulation_; visit_ = 0; }
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

// One step: `micro_batches` of equal size, each from sequence first(number) on and open to `adjust`; `reduce` runs after the
// last backward and `sum` adds up the loss.
template <class Adjust, class Reduce, class Sum>
void run_step(Model& model, Optimizer& optimizer, const ParityBatch& batch, Index micro_batches, Index micro_batch_size,
              const std::function<Index(Index)>& first, Adjust adjust, Reduce reduce, Sum sum, RunRecord& record) {
  const std::vector<std::int32_t> positions = model.attention().positions(batch.length);
  model.begin_step(micro_batches);
  for (Index number = 0; number < micro_batches; number++) {
    MicroBatch micro_batch = batch.micro_batch(first(number), micro_batch_size, positions);
    adjust(micro_batch);
    InFlight in_flight;
    model.forward({}, micro_batch, in_flight);
    model.backward({}, micro_batch, in_flight, number + 1 == micro_batches);
  }
  reduce();
  const double norm = std::sqrt(model.squared_gradient_norm());
  record.losses.push_back(sum(model.loss()));
  record.norms.push_back(norm);
  record.gradients.push_back(record_gradients(model));
  optimizer.update(learning_rate, clip_factor(norm, clip));
}

void take_local_mean(MicroBatch& micro_batch, Index parts) {
  const auto count = std::count_if(micro_batch.targets.begin(), micro_batch.targets.end(), [](auto t) { return t >= 0; });
  micro_batch.loss_scale = 1.0 / static_cast<double>(std::max<Index>(count, 1) * parts);
}

OptimizerSettings sgd() {
  OptimizerSettings settings;
  settings.kind = OptimizerSettings::Kind::sgd;
  settings.weight_decay = 0.1;
  return settings;
}

}  // namespace

RunRecord run_case(Communicator& group, const DpCase& test, Trace* trace) {
  const std::unique_ptr<Ops> ops = make_cpu_ops({});
  return run_case(group, *ops, test, trace);
}

RunRecord run_case(Communicator& group, Ops& ops, const DpCase& test, Trace* trace) {
  ops.device().set_poison(true);
  const ModelConfig config = parity_model(test.tied);
  DataParallel data_parallel(group, test.mode, test.bucket_bytes);
  Faulty hooks(data_parallel, group, ops, test.fault, test.accumulation);
  Model model(ops, config, {test.dtype, test.recompute, 0}, Stage::whole(config), {.hooks = &hooks});
  model.set_trace(trace);
  model.allocate();
  initialize_rounded(model, seed, test.rounding);
  const auto optimizer = make_optimizer(ops, model.buckets(), sgd());
  RunRecord record;
  for (Index step = 0; step < steps; step++) {
    const ParityBatch batch(config, step);
    const Index size = batch.sequences / (test.accumulation * group.size());
    run_step(
        model, *optimizer, batch, test.accumulation, size,
        [&](Index number) { return (number * group.size() + group.rank()) * size; },
        [&](MicroBatch& micro_batch) {
          if (test.fault == Fault::local_mean) take_local_mean(micro_batch, group.size() * test.accumulation);
        },
        [&] { hooks.finish_step(model); },
        [&](double loss) { return group.sum(loss); }, record);
    check_replicas(group, ops.device(), model.flat_weights(), step + 1);
  }
  record.weights = record_weights(model);
  return record;
}

RunRecord run_reference(const DpCase& test) {
  const std::unique_ptr<Ops> ops = make_cpu_ops({});
  const ModelConfig config = parity_model(test.tied);
  Model model(*ops, config, {test.dtype, Recompute::none, 0}, Stage::whole(config));
  model.allocate();
  initialize_rounded(model, seed, test.rounding);
  const auto optimizer = make_optimizer(*ops, model.buckets(), sgd());
  RunRecord record;
  for (Index step = 0; step < steps; step++) {
    const ParityBatch batch(config, step);
    run_step(
        model, *optimizer, batch, 3, batch.sequences / 3, [&](Index number) { return number * batch.sequences / 3; },
        [](MicroBatch&) {}, [] {}, [](double loss) { return loss; }, record);
  }
  record.weights = record_weights(model);
  return record;
}

}  // namespace escalera
