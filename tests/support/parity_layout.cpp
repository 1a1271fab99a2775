#include "tests/support/parity_layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "common/checkpoint/safetensors.h"
#include "common/comm/launch.h"
#include "common/optim/optimizer.h"
#include "common/train/replicas.h"

namespace escalera {
namespace {

constexpr double learning_rate = 0.5, clip = 0.05;  // the norm is above 1, so clipping is active
constexpr Index steps = 2;

double summed(const std::function<double(double)>& sum, double mine) { return sum ? sum(mine) : mine; }

}  // namespace

NamedTensors gather_tensors(Communicator& world, Model& model, Held held) {
  const DType dtype = held == Held::weights ? model.options().dtype : accumulation_dtype(model.options().dtype);
  NamedTensors all;
  WholeTensors(world, model).collect(held, [&](const Parameter& parameter, std::span<const std::byte> values) {
    all[parameter.name] = decode_values(values, dtype);
  });
  return all;
}

RunRecord run_parity(Model& model, const ParityLayout& layout) {
  OptimizerSettings settings;
  settings.kind = OptimizerSettings::Kind::sgd;
  settings.weight_decay = 0.1;
  const auto optimizer = make_optimizer(model.ops(), model.buckets(), settings);
  RunRecord record;
  for (Index step = 0; step < steps; step++) {
    const ParityBatch batch(model.config(), step, layout.sequences);
    const std::vector<std::int32_t> positions = model.attention().positions(batch.length);
    const Index size = batch.sequences / (layout.accumulation * layout.parts);
    require(size * layout.accumulation * layout.parts == batch.sequences, "{} sequences do not divide by {} x {}",
            batch.sequences, layout.accumulation, layout.parts);
    model.begin_step(layout.accumulation);
    for (Index number = 0; number < layout.accumulation; number++) {
      MicroBatch micro_batch = batch.micro_batch((number * layout.parts + layout.part) * size, size, positions);
      if (layout.adjust) layout.adjust(micro_batch);
      InFlight in_flight;
      model.forward({}, micro_batch, in_flight);
      model.backward({}, micro_batch, in_flight, number + 1 == layout.accumulation);
    }
    if (layout.reduce) layout.reduce();
    const double norm = std::sqrt(summed(layout.sum_squares, model.squared_gradient_norm()));
    record.losses.push_back(summed(layout.sum_loss, model.loss()));
    record.norms.push_back(norm);
    record.gradients.push_back(gather_tensors(layout.world, model, Held::gradients));
    optimizer->update(learning_rate, clip_factor(norm, clip));
    if (layout.after_update) layout.after_update();
    check_replicas(layout.world, model, step + 1);
  }
  record.weights = gather_tensors(layout.world, model, Held::master);
  return record;
}

const RunRecord& parity_reference(const ModelConfig& config, DType dtype, DType rounding, Index sequences) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, DType, DType, Index>, RunRecord> all;
  std::lock_guard lock(mutex);
  const auto [place, is_new] = all.try_emplace({to_json(config, dtype), dtype, rounding, sequences});
  if (!is_new) return place->second;
  launch({CommKind::threads, 1}, [&](Communicator& world) {
    const std::unique_ptr<Ops> ops = make_cpu_ops({});
    Model model(*ops, config, {dtype, Recompute::none, 0}, Stage::whole(config));
    model.allocate();
    initialize_rounded(model, parity_seed, rounding);
    place->second = run_parity(model, {.world = world, .accumulation = sequences, .sequences = sequences});
  });
  return place->second;
}

void expect_parity(const RunRecord& record, const ModelConfig& config, DType dtype, DType rounding, Index sequences) {
  const RunRecord& one = parity_reference(config, dtype, rounding, sequences);
  if (dtype == DType::float64) {
    const LargestError error = largest_error(record, one);
    EXPECT_LT(error.value, 1e-10) << error.where;
    return;
  }
  const RunRecord& truth = parity_reference(config, DType::float64, rounding, sequences);
  const double slack = dtype == DType::float32 ? 1e-6 : 1.0 / 256;
  const auto expect_close = [&](const std::vector<double>& got, const std::vector<double>& same_type,
                                const std::vector<double>& exact, const std::string& what) {
    EXPECT_LE(relative_error(got, exact), 2 * relative_error(same_type, exact) + slack) << what;
  };
  ASSERT_EQ(record.gradients.size(), truth.gradients.size());
  expect_close(record.losses, one.losses, truth.losses, "losses");
  expect_close(record.norms, one.norms, truth.norms, "norms");
  for (std::size_t step = 0; step < truth.gradients.size(); step++) {
    ASSERT_EQ(record.gradients[step].size(), truth.gradients[step].size());
    for (const auto& [name, values] : truth.gradients[step]) {
      expect_close(record.gradients[step].at(name), one.gradients[step].at(name), values,
                   fmt::format("gradient of {} in step {}", name, step + 1));
    }
  }
  for (const auto& [name, values] : truth.weights) {
    expect_close(record.weights.at(name), one.weights.at(name), values, "weight " + name);
  }
}

}  // namespace escalera
