#include "common/train/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "common/cuda/cuda_backend.h"
#include "common/train/signals.h"

namespace escalera {
namespace {

// ---- Threads --------------------------------------------------------------------------------------------

/// Ranks that share this host, as the launcher announces it; 1 without a launcher.
int ranks_on_this_host() {
  for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE"}) {
    if (const char* value = std::getenv(variable)) {
      if (const int ranks = std::atoi(value); ranks > 0) return ranks;
    }
  }
  return std::max(1, launched_world_size());
}

/// Whether ranks are threads of this process: said outright, or by --ranks.
bool ranks_are_threads(const TrainOptions& options) {
  return options.comm == CommChoice::threads || (options.comm != CommChoice::mpi && options.ranks.has_value());
}

void resolve_device(TrainOptions& options) {
  // A machine without a GPU is not a reason to load the CUDA library, nor is a simulated one a reason to prefer it.
  if (options.device == DeviceKind::automatic) {
    const bool gpu = machine_has_gpu() && find_cuda().backend && options.dtype != DType::float64;
    options.device = gpu ? DeviceKind::cuda : DeviceKind::cpu;
  }
  if (options.device == DeviceKind::cpu) {
    require<UsageError>(options.comm != CommChoice::nccl,
                        "--comm nccl carries tensors between GPUs, and this run computes on the CPU; use --comm mpi or --comm "
                        "threads, or --device cuda");
    return;
  }
  CudaBackend& backend = cuda_backend();
  require<UsageError>(options.dtype != DType::float64,
                      "--device cuda computes in float32 and bfloat16; --dtype float64 needs --device cpu");
  const Index head_size = options.model.head_size(), largest = backend.largest_head_size();
  require<UsageError>(head_size <= largest,
                      "--device cuda has attention for heads of up to {} columns, and the model's have {}; use --head-dim {} or "
                      "less, or --device cpu",
                      largest, head_size, largest);
}

void resolve_machine(TrainOptions& options, int world_size) {
  resolve_device(options);
  const bool threads = ranks_are_threads(options);
  options.launcher = threads ? CommKind::threads : CommKind::mpi;
  require<UsageError>(threads || !options.ranks || *options.ranks == world_size,
                      "--ranks {} goes with --comm threads (or nccl); with --comm mpi the launcher says how many ranks "
                      "there are (here {}): mpirun -n {}",
                      options.ranks.value_or(1), world_size, options.ranks.value_or(1));
  options.ranks = world_size;

  if (threads) {
    // All ranks live in one process then, and a team of threads for each would crowd out the others.
    require<UsageError>(
        options.threads.value_or(1) == 1,
        "--threads {}: with --comm threads each rank computes on one thread; use --threads 1 or "
        "--comm mpi",
        options.threads.value_or(1));
    options.threads = 1;
  } else if (!options.threads) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    options.threads = std::max(1, cores / ranks_on_this_host());
  }
  if (options.check_replicas == Automatic::automatic) {
    options.check_replicas = world_size <= 8 ? Automatic::on : Automatic::off;
  }
}

// ---- Batch ----------------------------------------------------------------------------------------------

/// micro-batch * accumulation * dp = global batch: fills what is open, refuses what does not come out even.
void resolve_batch(TrainOptions& options, Index dp) {
  constexpr Index usual_micro_batch = 8;
  std::optional<Index>& micro = options.micro_batch_size;
  std::optional<Index>& accumulation = options.gradient_accumulation_steps;
  if (!options.global_batch_size) {
    micro = micro.value_or(usual_micro_batch);
    accumulation = accumulation.value_or(1);
    options.global_batch_size = *micro * *accumulation * dp;
    return;
  }
  const Index global = *options.global_batch_size;
  // The nearest multiples of `unit`, as values that would work.
  const auto instead = [global](Index unit) {
    const Index below = global / unit * unit;
    return below > 0 ? fmt::format("{} or {}", below, below + unit) : fmt::format("{}", unit);
  };
  require<UsageError>(global % dp == 0,
                      "--global-batch-size {} cannot be shared out evenly among {} data-parallel ranks; "
                      "--global-batch-size {} would work",
                      global, dp, instead(dp));
  const Index per_rank = global / dp;

  if (micro && accumulation) {
    const Index product = *micro * *accumulation * dp;
    require<UsageError>(
        product == global,
        "--micro-batch-size {} x --gradient-accumulation-steps {} x {} data-parallel ranks are "
        "{} sequences, not --global-batch-size {}; leave one of the three out, or use "
        "--global-batch-size {}",
        *micro, *accumulation, dp, product, global, product);
  } else if (micro) {
    require<UsageError>(
        per_rank % *micro == 0,
        "--global-batch-size {} is not a multiple of --micro-batch-size {} x {} data-parallel "
        "ranks; --global-batch-size {} would work",
        global, *micro, dp, instead(*micro * dp));
    accumulation = per_rank / *micro;
  } else if (accumulation) {
    require<UsageError>(per_rank % *accumulation == 0,
                        "--global-batch-size {} is not a multiple of --gradient-accumulation-steps {} x {} "
                        "data-parallel ranks; --global-batch-size {} would work",
                        global, *accumulation, dp, instead(*accumulation * dp));
    micro = per_rank / *accumulation;
  } else {
    // The largest micro-batch up to the usual one that comes out even.
    micro = std::min(usual_micro_batch, per_rank);
    while (per_rank % *micro != 0) --*micro;
    accumulation = per_rank / *micro;
  }
}

// ---- Length and learning rate ---------------------------------------------------------------------------

void resolve_schedule(TrainOptions& options) {
  options.stop_after = options.stop_after.value_or(options.steps);
  require<UsageError>(*options.stop_after <= options.steps,
                      "--stop-after {} is beyond the last step, --steps {}; use at most {}",
                      *options.stop_after, options.steps, options.steps);
  options.min_learning_rate = options.min_learning_rate.value_or(options.learning_rate / 10);
  options.schedule().check();
  options.decay_steps = options.schedule().decay();
}

template <class T>
void override_with(T& value, const std::optional<T>& given) {
  if (given) value = *given;
}

}  // namespace

std::string_view to_string(OptimizerKind kind) {
  return kind == OptimizerKind::adamw ? "adamw" : "sgd";
}

std::string_view to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return "none";
    case Recompute::selective:
      return "selective";
    case Recompute::full:
      return "full";
  }
  return "unknown";
}

LearningRateSchedule TrainOptions::schedule() const {
  return {lr_schedule, learning_rate, min_learning_rate.value(), warmup_steps, steps, decay_steps};
}

void resolve_model(TrainOptions& options) {
  const ModelOverrides& given = options.model_overrides;
  ModelConfig model = load_model_config(options.model_name);
  override_with(model.vocab_size, given.vocab_size);
  override_with(model.hidden_size, given.hidden_size);
  override_with(model.intermediate_size, given.intermediate_size);
  override_with(model.num_hidden_layers, given.num_hidden_layers);
  override_with(model.num_attention_heads, given.num_attention_heads);
  override_with(model.num_key_value_heads, given.num_key_value_heads);
  override_with(model.head_dim, given.head_dim);
  override_with(model.max_position_embeddings, given.max_position_embeddings);
  override_with(model.rope_theta, given.rope_theta);
  override_with(model.rms_norm_eps, given.rms_norm_eps);
  override_with(model.initializer_range, given.initializer_range);
  override_with(model.tie_word_embeddings, given.tie_word_embeddings);
  model.validate();
  options.model = model;
}

void validate(TrainOptions& options, int world_size, int dp) {
  require<UsageError>(dp >= 1, "--dp must be at least 1, not {}", dp);
  const int width = options.token_width;
  require<UsageError>(width == 0 || width == 8 || width == 16 || width == 32,
                      "--token-width must be 0, 8, 16 or 32, not {}", width);
  resolve_model(options);
  resolve_machine(options, world_size);
  resolve_batch(options, dp);
  resolve_schedule(options);
  require<UsageError>(options.seq_length <= options.model.max_position_embeddings,
                      "--seq-length {} is more than the model's --max-position-embeddings {}; use a shorter "
                      "sequence, or raise the other to {}",
                      options.seq_length, options.model.max_position_embeddings, options.seq_length);
}

LaunchOptions launch_options(const TrainOptions& options) {
  LaunchOptions launch;
  const bool threads = ranks_are_threads(options);
  launch.kind = threads ? CommKind::threads : CommKind::mpi;
  if (!threads) return launch;
  launch.ranks = options.ranks.value_or(1);
  require<UsageError>(launched_world_size() == 1,
                      "--comm threads and --ranks make ranks inside one process, but the launcher started {} "
                      "processes; start the program without mpirun and use --ranks {}, or use --comm mpi",
                      launched_world_size(), launched_world_size());
  return launch;
}

int run_program(OptionTable& table, const TrainOptions& options, int argc, const char* const* argv,
                const std::function<void(Communicator& world)>& body) {
  const SignalThread signals;
  // Ranks are needed to say anything once, even that a request is refused; so a refusal waits until there are some.
  LaunchOptions ranks;
  std::string refusal;
  bool run = false;
  try {
    run = table.parse(argc, argv);
    if (run) ranks = launch_options(options);
  } catch (const UsageError& error) {
    refusal = error.what();
  }
  return launch(ranks, [&](Communicator& world) {
    if (!refusal.empty()) throw UsageError(refusal);
    if (run) {
      body(world);
    } else if (world.rank() == 0) {
      fmt::print("{}", table.help());
    }
  });
}

}  // namespace escalera
