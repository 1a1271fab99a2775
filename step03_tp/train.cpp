// Step 3, the program: trains a Llama-style model with tensor parallelism.
//
// builds on: step01_dp
// run:  scripts/launch -n 2 step03_tp --steps 20                                         two ranks share out every matrix
//       scripts/launch -n 4 step03_tp --tp 2 --sequence-parallel --tp-overlap --steps 20     two such pairs, data parallel
//       build/cpu/bin/step03_tp --comm threads --ranks 4 --steps 20                      four ranks in one process
// The loop below is the loop of every chapter; what is new here: TensorParallel, and the two lines marked with (1) and (2).

#include <algorithm>
#include <cmath>

#include "common/checkpoint/model_folder.h"
#include "common/comm/process_mesh.h"
#include "common/model/model.h"
#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"
#include "common/train/gradient_sums.h"
#include "common/train/options.h"
#include "common/train/replicas.h"
#include "common/train/report.h"
#include "common/train/session.h"
#include "common/train/setup.h"
#include "common/train/step_batches.h"
#include "step03_tp/formulas.h"
#include "step03_tp/layer_traffic.h"
#include "step03_tp/tensor_parallel.h"

namespace escalera {
namespace {

// ---- Options --------------------------------------------------------------------------------------------------------

struct Options {
  TrainOptions train;
  std::optional<int> tp, dp;
  TensorParallelSettings tensor;
};

void add_options(OptionTable& table, Options& options) {
  add_train_options(table, options.train);
  table.section("Tensor parallelism");
  table.add("--tp", "distributed.tp_size", options.tp,
            "ranks that share out every matrix; all that --dp leaves if not given");
  table.add("--dp", "distributed.dp_size", options.dp,
            "data-parallel groups of such ranks; as many as fit if not given");
  table.add("--sequence-parallel", "distributed.sequence_parallel", options.tensor.sequence_parallel,
            "norms and residual sums on 1/tp of the rows each");
  table.add("--tp-overlap", "distributed.tp_overlap", options.tensor.overlap,
            "collectives run beside the products that do not need them");
  table.add("--kv-replication", "distributed.kv_replication", options.tensor.kv_replication,
            "more ranks than key/value heads: several hold the same one; --no-kv-replication: refuse that");
}

/// --tp and --dp, each filled from the other where it was left open; the model is resolved.
MeshSizes mesh_sizes(const Options& options, int world) {
  MeshSizes sizes;
  sizes.tp = options.tp.value_or(std::max(1, world / options.dp.value_or(1)));
  sizes.dp = options.dp.value_or(std::max(1, world / sizes.tp));
  const Index needed = Index{sizes.tp} * sizes.dp;
  require<UsageError>(needed == world, "--tp {} x --dp {} make {} ranks, but {} {} running; {} would work", sizes.tp, sizes.dp,
                      needed, world, world == 1 ? "is" : "are",
                      TensorParallel::instead_of(sizes.tp, options.train.model, world, options.tensor));
  ProcessMesh::validate(sizes, world, "tp,cp,pp,dp");
  return sizes;
}

std::string describe(const TensorLayout& layout) {
  return fmt::format("{} rank{}{}{}", layout.tp, layout.tp == 1 ? "" : "s",
                     layout.settings.sequence_parallel ? ", sequence parallel" : "",
                     layout.settings.overlap ? ", overlapped" : "");
}

void train(Communicator& world, Options options) {
  TrainOptions& settings = options.train;

  // ---- Communicators ------------------------------------------------------------------------------------------------

  resolve_model(settings);  // what ranks can share out depends on it
  const MeshSizes sizes = mesh_sizes(options, world.size());
  const TensorLayout layout{sizes.tp, sizes.dp, options.tensor};
  validate(settings, world.size(), sizes.dp);
  TensorParallel::validate(settings.model, layout.tp, world.size(), layout.settings);
  TensorParallel::validate_rows(settings.micro_batch_size.value(), settings.seq_length, settings.model.max_position_embeddings,
                                layout.tp, layout.settings);
  check_files(world, settings);
  check_data(world, settings);
  check_memory(world, settings, [&] { return predict_memory(settings, layout); });
  Trace trace;
  world.set_trace(&trace);
  set_phase(world, "finding devices");
  Placement placement(world, settings, trace);
  ProcessMesh mesh(placement.tensors(), sizes);
  Communicator &tp = mesh.tp(), &dp = mesh.dp();

  // ---- Model --------------------------------------------------------------------------------------------------------

  set_phase(world, "building the model");
  Ops& ops = placement.ops();
  Device& device = ops.device();
  TensorParallel tensor_parallel(ops, tp, settings.model, layout.settings);  // (1) every matrix is cut here
  tensor_parallel.set_trace(&trace);
  LayerTraffic layer_traffic(tp);
  Model model(ops, settings.model, {settings.dtype, settings.recompute, settings.seq_length},
              Stage::whole(settings.model), {.hooks = &layer_traffic, .region = &tensor_parallel});
  for (Bucket& bucket : model.buckets()) bucket.replicas = &dp;
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
  for (const Communicator* group : {&tp, &dp}) session.watch(*group);
  if (tensor_parallel.kv_group()) session.watch(*tensor_parallel.kv_group());
  session.start({{"tensor parallel", describe(layout)},
                 {"data parallel", fmt::format("{} group{}", dp.size(), dp.size() == 1 ? "" : "s")}},
                placement.rows());
  Index evaluated = 0;  // micro-batches of validations
  for (Index step = 1; session.running(step); step++) {
    // Batch: the same for all ranks of a tensor-parallel group, and the number of targets in all of it, counted once per group.
    set_phase(world, fmt::format("step {}, reading the batch", step));
    batches.fill(sampler, shape, (step - 1) * shape.global_batch(), dp.rank());
    const Index targets = dp.sum(batches.unmasked_targets());
    if (targets == 0) session.print(fmt::format("step {}: warning: every target is masked; the gradient is zero", step));

    // Forward and backward, with f and g around every pair of linears. Gradients add up over micro-batches.
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
    sum_gradients(model.buckets());  // (2) over groups, then norms and shared heads over the ranks of each

    // Loss and norm, the same on all ranks; clip and update. Each rank has its share of the loss, and counts what it alone
    // holds, or is the first to hold.
    const double local_loss = model.loss(), local_squares = model.squared_gradient_norm();
    const double loss = world.sum(local_loss);
    const double norm = std::sqrt(tp.sum(local_squares));
    check_finite(world, step, "loss", loss, local_loss);
    check_finite(world, step, "gradient norm", norm, local_squares);
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
                         [&](const MicroBatch& micro_batch) {
                           evaluated++;
                           return tp.sum(model.evaluate(micro_batch));
                         });
      session.validation(step, result.loss, result.tokens);
    }
  }
  session.finish();

  // ---- Report -------------------------------------------------------------------------------------------------------

  set_phase(world, "report");
  if (!settings.export_dir.empty()) save_folder(world, model, settings.export_dir);
  MemoryPrediction memory = predict_memory(settings, layout);
  if (placement.stages_in_host_memory()) memory[MemoryCategory::communication].reset();  // no formula for the copies there
  session.print(memory_report(world, device.memory(), memory));
  TrafficPrediction predicted;
  const Index rows = shape.micro_batch_size * settings.seq_length;
  add(predicted, step_traffic(settings, layout), session.steps_done());
  add(predicted, forward_traffic(settings.model, settings.dtype, rows, layout), dp.sum(evaluated));
  session.print(traffic_report(world, session.groups(), predicted));
  if (tp.size() == 1) return;
  session.print(layer_traffic.report(
      world, dp.size(),
      escalera::layer_traffic(settings.model, settings.dtype, settings.recompute, rows, layout)));
}

}  // namespace
}  // namespace escalera

int main(int argc, char** argv) {
  using namespace escalera;
  Options options;
  OptionTable table("step03_tp",
                    "Tensor parallelism: the ranks of a group share out every matrix of the model.");
  add_options(table, options);
  return run_program(table, options.train, argc, argv, [&](Communicator& world) { train(world, options); });
}
