// Step 2, the program: trains a Llama-style model whose parameters, gradients and optimizer states are shared out.
//
// builds on: step01_dp (every rank holds everything)
// run:  scripts/launch -n 4 step02_fsdp --steps 200                        ZeRO-3 on four ranks
//       scripts/launch -n 4 step02_fsdp --zero 1 --steps 20                only optimizer states are shared out
//       scripts/launch -n 4 step02_fsdp --shard-size 2 --steps 20          two replicas of two shards each (HSDP)
// The loop below is the loop of every chapter; what is new here: FullySharded, and the lines marked with (1) to (3).

#include <cmath>

#include "common/checkpoint/model_folder.h"
#include "common/comm/process_mesh.h"
#include "common/model/model.h"
#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"
#include "common/train/options.h"
#include "common/train/replicas.h"
#include "common/train/report.h"
#include "common/train/session.h"
#include "common/train/setup.h"
#include "common/train/step_batches.h"
#include "step02_fsdp/report.h"

namespace escalera {
namespace {

// ---- Options --------------------------------------------------------------------------------------------------------

struct Options {
  TrainOptions train;
  std::optional<int> dp, shard_size;
  ShardingSettings sharding;
};

void add_options(OptionTable& table, Options& options) {
  constexpr IntegerRange ranks{1, 65536};
  add_train_options(table, options.train);
  table.section("Sharding");
  table.add("--dp", "distributed.dp_size", options.dp, "data-parallel ranks; all ranks if not given", ranks);
  table.add("--zero", "distributed.zero", options.sharding.zero,
            "what is shared out: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters", {0, 3});
  table.add("--shard-size", "distributed.shard_size", options.shard_size,
            "ranks that share out one copy of the model; groups of so many are replicas; all if not given",
            ranks);
  table.add("--prefetch", "distributed.prefetch", options.sharding.prefetch,
            "units whose weights are fetched while one computes, and whose gradients may still be on their "
            "way; 0: wait each time",
            {0, 1 << 20});
  table.add("--reshard-after-forward", "distributed.reshard_after_forward",
            options.sharding.reshard_after_forward,
            "stage 3: give gathered weights back after each use; --no-reshard-after-forward: keep them for "
            "the step");
  table.add_choice("--reduce-dtype", "distributed.reduce_dtype", options.sharding.reduce_dtype,
                   {{"float32", DType::float32}, {"bfloat16", DType::bfloat16}},
                   "type in which gradients travel; unset: the one they are accumulated in");
}

/// What the formulas need to know; `options` are validated.
ShardedRun sharded_run(const Options& options, int dp) {
  const TrainOptions& settings = options.train;
  const int shards = options.sharding.zero == 0 ? 1 : options.shard_size.value_or(dp);
  return {settings.model, settings.dtype, settings.optimizer,      options.sharding,
          shards,         dp / shards,    settings.micro_batches()};
}

void train(Communicator& world, Options options) {
  TrainOptions& settings = options.train;
  const int ranks = options.dp.value_or(world.size());
  validate(settings, world.size(), ranks);

  // ---- Communicators ------------------------------------------------------------------------------------------------

  MeshSizes sizes;
  sizes.dp = ranks;
  ProcessMesh::validate(sizes, world.size(), "tp,cp,pp,dp");
  validate_sharding(options.sharding, options.shard_size, ranks, settings.dtype);
  const ShardedRun run = sharded_run(options, ranks);
  check_files(world, settings);
  check_data(world, settings);
  check_memory(world, settings, [&] { return predict_memory(settings, run); });
  Trace trace;
  world.set_trace(&trace);
  set_phase(world, "finding devices");
  Placement placement(world, settings, trace);
  ProcessMesh mesh(placement.tensors(), sizes);
  Communicator& dp = mesh.dp();
  // Neighbours share a copy of the model; ranks in the same place of their groups hold the same part.
  const auto shard = dp.split(dp.rank() / run.shards, dp.rank(), "shard");
  const auto replicas = dp.split(dp.rank() % run.shards, dp.rank(), "replicas");

  // ---- Model --------------------------------------------------------------------------------------------------------

  set_phase(world, "building the model");
  Ops& ops = placement.ops();
  Device& device = ops.device();
  FullySharded fsdp(*shard, *replicas, options.sharding);
  Model model(ops, settings.model, {settings.dtype, settings.recompute, settings.seq_length},
              Stage::whole(settings.model), {.hooks = &fsdp});
  model.set_trace(&trace);
  fsdp.shard(model);  // (1) from here on, this rank is responsible for a part of each bucket
  model.allocate();
  if (settings.init_from.empty()) {
    model.initialize(settings.seed, settings.threads.value());
  } else {
    load_weights(model, settings.init_from);
  }
  fsdp.after_update();

  // ---- Data ---------------------------------------------------------------------------------------------------------

  const TokenFile file(settings.data, settings.token_width);
  const DataSplit split = split_tokens(file, validation_fraction(settings), settings.seq_length);
  const BatchSampler sampler(file, split.training, settings.seq_length, settings.seed);
  std::optional<ValidationSet> held_out;
  if (settings.eval_every > 0) held_out.emplace(file, split.validation, settings.seq_length);
  const BatchShape shape{settings.micro_batch_size.value(), settings.micro_batches(), dp.size()};
  StepBatches batches(model.attention().positions(settings.seq_length), settings.seq_length);

  // ---- Optimizer ----------------------------------------------------------------------------------------------------

  const std::unique_ptr<Optimizer> optimizer =
      make_optimizer(ops, model.buckets(), optimizer_settings(settings));
  const LearningRateSchedule learning_rate = settings.schedule();

  // ---- Training loop ------------------------------------------------------------------------------------------------

  Session session(world, settings, device, trace);
  session.watch(dp);
  session.watch(*shard);
  session.watch(*replicas);
  session.start({{"sharding", describe(run)}}, placement.rows());
  Index passes = 0;  // forward passes over held-out text
  for (Index step = 1; session.running(step); step++) {
    // Batch: this rank's part of the global batch, and the number of targets in all of it.
    set_phase(world, fmt::format("step {}, reading the batch", step));
    batches.fill(sampler, shape, (step - 1) * shape.global_batch(), dp.rank());
    const Index targets = dp.sum(batches.unmasked_targets());
    if (targets == 0)
      session.print(fmt::format("step {}: warning: every target is masked; the gradient is zero", step));

    // Forward and backward. Weights are gathered around each visit of a unit; gradients are reduced behind it.
    model.begin_step(shape.accumulation);
    for (Index number = 0; number < shape.accumulation; number++) {
      const MicroBatch micro_batch = batches.micro_batch(number, targets, shape.global_batch());
      InFlight in_flight;
      set_phase(world, fmt::format("step {}, forward", step));
      model.forward({}, micro_batch, in_flight);
      set_phase(world, fmt::format("step {}, backward", step));
      model.backward({}, micro_batch, in_flight, number + 1 == shape.accumulation);
    }
    set_phase(world, fmt::format("step {}, reduction", step));
    fsdp.finish_step();  // (2) from here on, every rank has its part of the sum

    // Loss and norm, the same on all ranks; clip and update. The parts of a shard group make up the whole gradient.
    const double local_loss = model.loss(), local_norm = model.squared_gradient_norm();
    const double loss = dp.sum(local_loss);
    const double norm = std::sqrt(shard->sum(local_norm));
    check_finite(world, step, "loss", loss, local_loss);
    check_finite(world, step, "gradient norm", norm, local_norm);
    if (step == 1 && !settings.dump_gradients.empty()) save_gradients(world, model, settings.dump_gradients);
    set_phase(world, fmt::format("step {}, update", step));
    const double rate = learning_rate.at(step);
    optimizer->update(rate, clip_factor(norm, settings.clip));
    fsdp.after_update();  // (3) each rank has updated its part, and wants those of the others
    if (settings.check_replicas == Automatic::on) {
      fsdp.finish_gathers();
      check_replicas(world, model, step);
    }

    session.end_step({step, loss, norm, rate});
    if (held_out && (step % settings.eval_every == 0 || step == settings.stop_after)) {
      set_phase(world, fmt::format("step {}, validation", step));
      const ValidationResult result =
          validate_model(dp, *held_out, shape.micro_batch_size, settings.seq_length, settings.eval_steps,
                         [&](const MicroBatch& micro_batch) {
                           passes++;
                           return model.evaluate(micro_batch);
                         });
      session.validation(step, result.loss, result.tokens);
    }
  }
  session.finish();

  // ---- Report -------------------------------------------------------------------------------------------------------

  set_phase(world, "report");
  if (!settings.export_dir.empty()) save_folder(world, model, settings.export_dir);
  MemoryPrediction predicted = predict_memory(settings, run);
  if (placement.stages_in_host_memory())
    predicted[MemoryCategory::communication].reset();  // no formula for the copies there
  session.print(memory_report(world, device.memory(), predicted));
  session.print(sharding_report(world, device.memory(), fsdp, run));
  session.print(traffic_report(world, session.groups(), run_traffic(run, session.steps_done(), passes)));
}

}  // namespace
}  // namespace escalera

int main(int argc, char** argv) {
  using namespace escalera;
  Options options;
  OptionTable table(
      "step02_fsdp",
      "Fully sharded data parallelism: parameters, gradients and optimizer states are shared out.");
  add_options(table, options);
  return run_program(table, options.train, argc, argv, [&](Communicator& world) { train(world, options); });
}
