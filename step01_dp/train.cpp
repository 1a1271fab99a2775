// Step 1, the program: trains a Llama-style model with data parallelism.
//
// builds on: common/ (chapter 0: one rank)
// run:  scripts/launch -n 4 step01_dp --steps 200                          four ranks on the default text
//       scripts/launch -n 2 step01_dp --dp-mode naive --steps 20           the plainest form
//       build/cpu/bin/step01_dp --comm threads --ranks 4 --steps 20        four ranks in one process
// The loop below is the loop of every chapter; what is new here: DataParallel, and the two lines marked with (1) and (2).

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
#include "step01_dp/data_parallel.h"

namespace escalera {
namespace {

// ---- Options --------------------------------------------------------------------------------------------------------

struct Options {
  TrainOptions train;
  std::optional<int> dp;
  DpMode mode = DpMode::overlapped;
  double bucket_mb = 0;
};

void add_options(OptionTable& table, Options& options) {
  add_train_options(table, options.train);
  table.section("Data parallelism");
  table.add("--dp", "distributed.dp_size", options.dp, "data-parallel ranks; all ranks if not given");
  table.add_choice("--dp-mode", "distributed.dp_mode", options.mode,
                   {{"naive", DpMode::naive}, {"bucketed", DpMode::bucketed}, {"overlapped", DpMode::overlapped}},
                   "how gradients are reduced");
  table.add("--bucket-mb", "distributed.bucket_mb", options.bucket_mb,
            "gradients of neighbouring units travel together up to this size, in MB (10^6 bytes); 0: each unit alone",
            {0, 1e9});
}

void train(Communicator& world, Options options) {
  TrainOptions& settings = options.train;
  validate(settings, world.size(), options.dp.value_or(world.size()));

  // ---- Communicators ------------------------------------------------------------------------------------------------

  MeshSizes sizes;
  sizes.dp = options.dp.value_or(world.size());
  ProcessMesh::validate(sizes, world.size(), "tp,cp,pp,dp");
  check_files(world, settings);
  check_data(world, settings);
  check_memory(world, settings, [&] { return predict_memory(settings); });
  Trace trace;
  world.set_trace(&trace);
  set_phase(world, "finding devices");
  Placement placement(world, settings, trace);
  ProcessMesh mesh(placement.tensors(), sizes);
  Communicator& dp = mesh.dp();

  // ---- Model --------------------------------------------------------------------------------------------------------

  set_phase(world, "building the model");
  Ops& ops = placement.ops();
  Device& device = ops.device();
  DataParallel data_parallel(dp, options.mode, static_cast<Index>(options.bucket_mb * 1e6));
  Model model(ops, settings.model, {settings.dtype, settings.recompute, settings.seq_length},
              Stage::whole(settings.model), {.hooks = &data_parallel});
  model.set_trace(&trace);
  model.allocate();
  if (settings.init_from.empty()) {
    model.initialize(settings.seed, settings.threads.value());
  } else {
    load_weights(model, settings.init_from);
  }

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
  session.start({{"data parallel", fmt::format("{} rank{}, {}", dp.size(), dp.size() == 1 ? "" : "s", to_string(options.mode))}},
                placement.rows());
  for (Index step = 1; session.running(step); step++) {
    // Batch: this rank's part of the global batch, and the number of targets in all of it.
    set_phase(world, fmt::format("step {}, reading the batch", step));
    batches.fill(sampler, shape, (step - 1) * shape.global_batch(), dp.rank());
    const Index targets = dp.sum(batches.unmasked_targets());
    if (targets == 0) session.print(fmt::format("step {}: warning: every target is masked; the gradient is zero", step));

    // Forward and backward. Gradients add up over micro-batches; on the last one data parallelism reduces them.
    model.begin_step(shape.accumulation);
    for (Index number = 0; number < shape.accumulation; number++) {
      const MicroBatch micro_batch = batches.micro_batch(number, targets, shape.global_batch());
      InFlight in_flight;
      set_phase(world, fmt::format("step {}, forward", step));
      model.forward({}, micro_batch, in_flight);
      set_phase(world, fmt::format("step {}, backward", step));
      model.backward({}, micro_batch, in_flight, number + 1 == shape.accumulation);  // (1) starts reductions
    }
    set_phase(world, fmt::format("step {}, reduction", step));
    data_parallel.finish_step();  // (2) from here on, every rank has the sum

    // Loss and norm, the same on all ranks; clip and update.
    const double local_loss = model.loss();
    const double loss = dp.sum(local_loss);
    const double norm = std::sqrt(model.squared_gradient_norm());
    check_finite(world, step, "loss", loss, local_loss);
    check_finite(world, step, "gradient norm", norm, norm);
    if (step == 1 && !settings.dump_gradients.empty()) save_gradients(world, model, settings.dump_gradients);
    set_phase(world, fmt::format("step {}, update", step));
    const double rate = learning_rate.at(step);
    optimizer->update(rate, clip_factor(norm, settings.clip));
    if (settings.check_replicas == Automatic::on) check_replicas(world, model, step);

    session.end_step({step, loss, norm, rate});
    if (held_out && (step % settings.eval_every == 0 || step == settings.stop_after)) {
      set_phase(world, fmt::format("step {}, validation", step));
      const ValidationResult result =
          validate_model(dp, *held_out, shape.micro_batch_size, settings.seq_length, settings.eval_steps,
                         [&](const MicroBatch& micro_batch) { return model.evaluate(micro_batch); });
      session.validation(step, result.loss, result.tokens);
    }
  }
  session.finish();

  // ---- Report -------------------------------------------------------------------------------------------------------

  set_phase(world, "report");
  if (!settings.export_dir.empty()) save_folder(world, model, settings.export_dir);
  session.print(memory_report(world, device.memory(), predict_memory(settings)));
  TrafficPrediction predicted;
  predicted[Operation::all_reduce] =
      session.steps_done() * data_parallel_traffic(settings.model, settings.dtype, dp.size());
  session.print(traffic_report(world, session.groups(), predicted));
}

}  // namespace
}  // namespace escalera

int main(int argc, char** argv) {
  using namespace escalera;
  Options options;
  OptionTable table("step01_dp", "Data parallelism: every rank has the whole model and its own part of the batch.");
  add_options(table, options);
  return run_program(table, options.train, argc, argv, [&](Communicator& world) { train(world, options); });
}
