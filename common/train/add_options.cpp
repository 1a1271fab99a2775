// The table of options that all trainers share: flag, key in the JSON file, variable, help, range.
#include "common/train/options.h"

namespace escalera {
namespace {

void add_model_options(OptionTable& table, TrainOptions& options) {
  constexpr IntegerRange size{1, 0x7fffffff};
  constexpr RealRange positive{.open_below = true};
  ModelOverrides& model = options.model_overrides;
  table.section("Model");
  table.add("--model", "model.name", options.model_name,
            "preset in configs/models, a config.json of Hugging Face, or a folder with one", "NAME|FILE");
  table.add("--num-hidden-layers", "model.num_hidden_layers", model.num_hidden_layers, "blocks", size);
  table.add("--hidden-size", "model.hidden_size", model.hidden_size, "width of the residual stream", size);
  table.add("--intermediate-size", "model.intermediate_size", model.intermediate_size,
            "width of the feed-forward layer", size);
  table.add("--num-attention-heads", "model.num_attention_heads", model.num_attention_heads, "query heads",
            size);
  table.add("--num-key-value-heads", "model.num_key_value_heads", model.num_key_value_heads,
            "key/value heads; they divide the query heads", size);
  table.add("--head-dim", "model.head_dim", model.head_dim, "size of a head; 0: hidden size / query heads",
            {0, 0x7fffffff});
  table.add("--vocab-size", "model.vocab_size", model.vocab_size, "token ids", size);
  table.add("--max-position-embeddings", "model.max_position_embeddings", model.max_position_embeddings,
            "longest sequence", size);
  table.add("--rope-theta", "model.rope_theta", model.rope_theta, "base of the rotary angles", positive);
  table.add("--rms-norm-eps", "model.rms_norm_eps", model.rms_norm_eps, "added to the mean square", positive);
  table.add("--initializer-range", "model.initializer_range", model.initializer_range,
            "standard deviation of the first weights");
  table.add("--tie-word-embeddings", "model.tie_word_embeddings", model.tie_word_embeddings,
            "one matrix for embedding and head");
  table.add("--init-from", "checkpoint.init_from", options.init_from,
            "start from the weights in this Hugging Face folder", "DIR");
}

void add_machine_options(OptionTable& table, TrainOptions& options) {
  using enum CommChoice;
  table.section("Machine");
  table.add_choice("--device", "distributed.device", options.device,
                   {{"auto", DeviceKind::automatic}, {"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}},
                   "where the model computes; auto: on a GPU if there is one (a simulated one is only taken by name)");
  table.add_choice("--comm", "distributed.backend", options.comm,
                   {{"auto", automatic}, {"mpi", mpi}, {"nccl", nccl}, {"threads", threads}},
                   "what carries communication; auto: threads if --ranks is given, else mpi, and nccl between GPUs if each rank has "
                   "one of its own");
  table.add("--ranks", "distributed.ranks", options.ranks, "ranks as threads of this one process",
            {1, 65536});
  table.add("--threads", "distributed.threads", options.threads,
            "compute threads of each rank; unset: cores / ranks on this host", {1, 4096});
  table.add_choice("--dtype", "model.dtype", options.dtype,
                   {{"float32", DType::float32}, {"float64", DType::float64}, {"bfloat16", DType::bfloat16}},
                   "type that the model computes with");
  table.add_choice(
      "--recompute", "training.recompute", options.recompute,
      {{"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}},
      "activations that backward computes again; selective: norms and SwiGLU, full: whole blocks");
  table.add_bytes("--memory-limit", "training.memory_limit", options.memory_limit,
                  "most bytes of tensors on a rank, such as 2GB; 0: no limit");
}

void add_training_options(OptionTable& table, TrainOptions& options) {
  constexpr IntegerRange from_zero{0};
  constexpr IntegerRange batch{1, 1 << 20};
  table.section("Data and batch");
  table.add("--data", "dataset.path", options.data, "text (bytes are tokens) or token file", "FILE");
  table.add("--token-width", "dataset.token_width", options.token_width,
            "bits per token of a raw file: 8, 16 or 32; 0: text, or a header says it", {0, 32});
  table.add("--micro-batch-size", "training.micro_batch_size", options.micro_batch_size,
            "sequences per rank in one forward pass; unset: 8, or what --global-batch-size leaves", batch);
  table.add("--gradient-accumulation-steps", "training.gradient_accumulation_steps",
            options.gradient_accumulation_steps,
            "micro-batches per step; unset: 1, or what --global-batch-size leaves", batch);
  table.add("--global-batch-size", "training.global_batch_size", options.global_batch_size,
            "sequences per step on all ranks = micro-batch * accumulation * data-parallel ranks",
            {1, std::int64_t{1} << 32});
  table.add("--seq-length", "training.seq_length", options.seq_length, "tokens per sequence", {1, 1 << 30});
  table.add("--seed", "training.seed", options.seed, "of weights and sample order", from_zero);

  table.section("Optimization");
  table.add("--steps", "training.total_train_steps", options.steps,
            "number of the last step; the learning rate follows it", {1, std::int64_t{1} << 40});
  table.add("--stop-after", "training.stop_after", options.stop_after,
            "end after this step, without changing the schedule");
  table.add_choice("--optimizer", "training.optimizer", options.optimizer,
                   {{"adamw", OptimizerKind::adamw}, {"sgd", OptimizerKind::sgd}}, "update rule");
  table.add("--learning-rate", "training.learning_rate", options.learning_rate, "peak");
  table.add("--min-learning-rate", "training.min_learning_rate", options.min_learning_rate,
            "end of the decay; unset: a tenth of the peak");
  table.add_choice(
      "--lr-schedule", "training.lr_schedule", options.lr_schedule,
      {{"constant", ScheduleKind::constant}, {"cosine", ScheduleKind::cosine}, {"wsd", ScheduleKind::wsd}},
      "after warm-up; wsd: warm-up, stable, decay");
  table.add("--warmup-steps", "training.warmup_steps", options.warmup_steps, "linear rise to the peak",
            from_zero);
  table.add("--decay-steps", "training.decay_steps", options.decay_steps,
            "unset: cosine: all steps after warm-up, wsd: the last fifth", from_zero);
  table.add("--weight-decay", "training.weight_decay", options.weight_decay, "of matrices, not of norms");
  table.add("--beta1", "training.beta1", options.beta1, "AdamW's first decay rate", {0.0, 1.0, false, true});
  table.add("--beta2", "training.beta2", options.beta2, "AdamW's second decay rate", {0.0, 1.0, false, true});
  table.add("--adam-epsilon", "training.adam_epsilon", options.adam_epsilon, "added to AdamW's divisor",
            {.open_below = true});
  table.add("--clip", "training.clip", options.clip, "largest norm of the gradient; 0: no clipping");
  table.add("--eval-every", "training.eval_every", options.eval_every,
            "steps between validations on held-out text; 0: none, and nothing is held out", from_zero);
  table.add("--eval-steps", "training.eval_steps", options.eval_steps, "batches per validation");
}

void add_output_options(OptionTable& table, TrainOptions& options) {
  table.section("Output");
  table.add("--metrics", "logging.metrics", options.metrics, "JSON lines, one per step", "FILE");
  table.add("--trace", "logging.trace", options.trace, "what each rank did when, for ui.perfetto.dev",
            "FILE");
  table.add("--dump-gradients", "logging.dump_gradients", options.dump_gradients,
            "gradients of the first step before clipping, as safetensors", "FILE");
  table.add("--export", "checkpoint.export", options.export_dir,
            "config.json and model.safetensors of the trained model, for transformers", "DIR");
  table.add("--log-every", "logging.log_every", options.log_every, "steps per line of the log");
  table.add_choice("--check-replicas", "logging.check_replicas", options.check_replicas,
                   {{"auto", Automatic::automatic}, {"on", Automatic::on}, {"off", Automatic::off}},
                   "compare weights that should be equal on all ranks; auto: up to 8 ranks");
  table.add("--peak-tflops", "logging.peak_tflops", options.peak_tflops,
            "peak of one rank's device, for the MFU; 0: unknown");
}

/// What people may type because other trainers, or other programs here, have it.
void explain_what_is_missing(OptionTable& table) {
  const std::string checkpoints =
      "it saves no checkpoints to resume from; --export writes the trained weights, "
      "and --init-from starts from such a folder";
  table.explain_missing("--save-dir", "checkpoint.save_dir", checkpoints);
  table.explain_missing("--save-every", "checkpoint.save_frequency", checkpoints);
  table.explain_missing("--resume", "checkpoint.load_path", checkpoints);
  table.explain_missing("--dp", "distributed.dp_size", "it is not data parallel");
  table.explain_missing("--tp", "distributed.tp_size", "it is not tensor parallel");
  table.explain_missing("--sequence-parallel", "distributed.sequence_parallel", "it is not tensor parallel");
  table.explain_missing("--pp", "distributed.pp_size", "it is not pipeline parallel");
  table.explain_missing("--schedule", "distributed.pp_engine", "it is not pipeline parallel");
  table.explain_missing("--cp", "distributed.cp_size", "it is not context parallel");
  table.explain_missing("--ep", "distributed.ep_size", "it has no experts");
  for (const auto& [flag, key] : {std::pair{"--tp-overlap", "distributed.tp_overlap"},
                                  std::pair{"--kv-replication", "distributed.kv_replication"}}) {
    table.explain_missing(flag, key, "it is not tensor parallel");
  }
  for (const auto& [flag, key] : {std::pair{"--zero", "distributed.zero"}, std::pair{"--prefetch", "distributed.prefetch"},
                                  std::pair{"--shard-size", "distributed.shard_size"},
                                  std::pair{"--reduce-dtype", "distributed.reduce_dtype"},
                                  std::pair{"--reshard-after-forward", "distributed.reshard_after_forward"}}) {
    table.explain_missing(flag, key, "it does not shard parameters over data-parallel ranks");
  }
}

}  // namespace

void add_train_options(OptionTable& table, TrainOptions& options) {
  add_model_options(table, options);
  add_machine_options(table, options);
  add_training_options(table, options);
  add_output_options(table, options);
  explain_what_is_missing(table);
}

}  // namespace escalera
