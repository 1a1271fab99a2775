#include "step02_fsdp/report.h"

#include <fmt/format.h>

#include "common/train/text_table.h"

namespace escalera {

std::string sharding_report(Communicator& world, const MemoryLedger& ledger, const FullySharded& fsdp,
                            const ShardedRun& run) {
  const ShardedMemory predicted = sharded_memory(run);
  TextTable table({"sharding, bytes", "most on a rank", "formula", "difference", "padding on all ranks"});
  const auto add = [&](const std::string& name, Index mine, Index formula, const std::string& padding) {
    const auto measured = static_cast<Index>(world.max(static_cast<double>(mine)));
    table.add({name, grouped(measured), grouped(formula),
               difference(static_cast<double>(measured), static_cast<double>(formula)), padding});
  };
  const auto add_state = [&](MemoryCategory category, const ShardedMemory::Bytes& bytes) {
    add(std::string(to_string(category)), ledger.peak(category), bytes.per_rank, grouped(bytes.padding));
  };
  add_state(MemoryCategory::parameters, predicted.parameters);
  add_state(MemoryCategory::gradients, predicted.gradients);
  add_state(MemoryCategory::optimizer, predicted.optimizer);
  add("gathered weights", fsdp.peak_gathered(), gathered_peak(run), "");
  std::string text = table.text();
  const auto units = static_cast<Index>(world.max(static_cast<double>(fsdp.peak_gathered_units())));
  if (units > 0) {
    text += fmt::format("  gathered at once: the weights of {} unit{}", units, units == 1 ? "" : "s");
    text += run.sharding.reshard_after_forward
                ? fmt::format(", at most prefetch + 1 = {}\n", run.sharding.prefetch + 1)
                : "\n";
  }
  return text;
}

MemoryPrediction predict_memory(const TrainOptions& options, const ShardedRun& run) {
  const ShardedMemory held = sharded_memory(run);
  MemoryPrediction predicted = predict_memory(options);
  predicted[MemoryCategory::parameters] = held.parameters.per_rank;
  predicted[MemoryCategory::gradients] = held.gradients.per_rank;
  predicted[MemoryCategory::optimizer] = held.optimizer.per_rank;
  predicted[MemoryCategory::communication] = communication_peak(run);
  return predicted;
}

std::string describe(const ShardedRun& run) {
  const ShardingSettings& sharding = run.sharding;
  std::string text =
      fmt::format("ZeRO-{}, {} shard{} x {} replica{}, prefetch {}", sharding.zero, run.shards,
                  run.shards == 1 ? "" : "s", run.replicas, run.replicas == 1 ? "" : "s", sharding.prefetch);
  if (sharding.zero == 3)
    text += sharding.reshard_after_forward ? ", reshard after forward" : ", no reshard after forward";
  const DType travels = sharding.reduce_dtype.value_or(accumulation_dtype(run.dtype));
  return text + fmt::format(", gradients reduced in {}", to_string(travels));
}

}  // namespace escalera
