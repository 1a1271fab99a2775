// What every trainer can be asked to do: the options that all chapters share, their defaults, and the checks between
// them.
// defines: TrainOptions, add_train_options(), resolve_model(), validate(), check_files(), check_data(), check_memory(),
// run_program()
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/comm/launch.h"
#include "common/model/config.h"
#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"
#include "common/train/option_table.h"

namespace escalera {

struct MemoryPrediction;

/// Where the model computes.
enum class DeviceKind { automatic, cpu, cuda };
/// What carries communication. `automatic`: threads if --ranks is given, else mpi; between GPUs nccl where each rank has its own.
enum class CommChoice { automatic, mpi, nccl, threads };
/// The update rule.
using OptimizerKind = OptimizerSettings::Kind;
/// A switch that may be left to the program.
enum class Automatic { automatic, on, off };

/// "adamw" or "sgd", as typed on the command line.
std::string_view to_string(OptimizerKind kind);
/// "none", "selective" or "full", as typed on the command line.
std::string_view to_string(Recompute recompute);

/// Model sizes typed on the command line or in the `model` section; they replace those of the preset.
struct ModelOverrides {
  /// See ModelConfig.
  /// @{
  std::optional<Index> vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
      num_key_value_heads, head_dim, max_position_embeddings;
  std::optional<double> rope_theta, rms_norm_eps, initializer_range;
  std::optional<bool> tie_word_embeddings;
  /// @}
};

/// The options of one run. Fields marked "derived" are filled by validate() where the user left them open;
/// after it every optional below has a value.
struct TrainOptions {
  // Model
  std::string model_name = "tiny";        ///< preset, config.json, or folder
  ModelOverrides model_overrides;         ///< as typed
  ModelConfig model;                      ///< derived: the preset with the overrides, checked
  Recompute recompute = Recompute::none;  ///< what backward computes again
  std::string init_from;                  ///< folder with Hugging Face weights, or empty

  // Data
  std::string data = "data/kjv.txt";  ///< a text (its bytes are the tokens) or a token file
  int token_width = 0;  ///< bits: 8, 16 or 32, see TokenFile; 0: text, or a token file with a header

  // Machine
  DeviceKind device = DeviceKind::automatic;  ///< derived: cpu or cuda
  CommChoice comm = CommChoice::automatic;    ///< as typed
  CommKind launcher = CommKind::mpi;          ///< derived: who makes the ranks
  std::optional<int> ranks;                   ///< world size with threads
  DType dtype = DType::float32;               ///< of weights and activations
  std::optional<int> threads;                 ///< derived: compute threads of each rank
  Index memory_limit = 0;                     ///< bytes per rank, 0: none

  // Batch
  /// Derived: global = micro * accumulation * dp, counted in sequences.
  /// @{
  std::optional<Index> micro_batch_size, gradient_accumulation_steps, global_batch_size;
  /// @}
  Index seq_length = 256;  ///< tokens per sequence
  std::uint64_t seed = 1;  ///< of initial weights and batches

  // Length and learning rate
  Index steps = 100;                                ///< number of the last step; shapes the schedule
  std::optional<Index> stop_after;                  ///< derived: last step that is run
  OptimizerKind optimizer = OptimizerKind::adamw;   ///< update rule
  double learning_rate = 1e-3;                      ///< the highest, after warm-up
  std::optional<double> min_learning_rate;          ///< derived: a tenth of learning_rate
  ScheduleKind lr_schedule = ScheduleKind::cosine;  ///< shape after warm-up
  Index warmup_steps = 0;                           ///< in which the rate rises linearly
  std::optional<Index> decay_steps;  ///< derived: cosine: all after warm-up, wsd: last fifth, constant: 0
  double weight_decay = 0.1;         ///< of the parameters that decay
  double beta1 = 0.9;                ///< AdamW: decay of the first moment
  double beta2 = 0.95;               ///< AdamW: decay of the second moment
  double adam_epsilon = 1e-8;        ///< AdamW: added to the root of the second moment
  double clip = 1.0;                 ///< largest norm of the gradient; 0: no clipping

  // Evaluation
  Index eval_every = 0;   ///< steps between validations; 0: none, and nothing is held out
  Index eval_steps = 10;  ///< batches per validation

  // Output
  /// A folder and three files; empty: not written. The gradients are those of the first step, before
  /// clipping.
  /// @{
  std::string export_dir, dump_gradients, metrics, trace;
  /// @}
  Index log_every = 1;  ///< steps per line of the log
  Automatic check_replicas =
      Automatic::automatic;  ///< derived: compare weights of replicas; on up to 8 ranks
  double peak_tflops = 0.0;  ///< peak of one rank's device, in TFLOP/s; 0: unknown, no MFU

  /// The learning rate of each step; after validate().
  LearningRateSchedule schedule() const;
  /// Micro-batches per step on this rank; after validate().
  Index micro_batches() const { return gradient_accumulation_steps.value(); }
  /// Tokens of the global batch; after validate().
  Index tokens_per_step() const { return global_batch_size.value() * seq_length; }
};

/// Registers all of TrainOptions. `options` must outlive `table`.
void add_train_options(OptionTable& table, TrainOptions& options);

/// Loads options.model_name, puts the overrides in and checks the result. validate() calls it.
void resolve_model(TrainOptions& options);

/// Checks the options against each other and fills those left open. `dp` is the number of ranks that share
/// out the global batch. Looks at no file except the model's. Throws UsageError naming the options and
/// numbers that clash and a value that works.
void validate(TrainOptions& options, int world_size, int dp);

/// Checks that inputs can be read and that outputs can be written, without creating or changing any.
/// Collective: rank 0 looks, and all ranks throw the same UsageError.
void check_files(Communicator& world, const TrainOptions& options);

/// Checks that the text can be trained on: that the file is what --token-width says, that every id is in the vocabulary,
/// and that there is enough of it for one step and for validation. `options` are validated. Collective like
/// check_files().
void check_data(Communicator& world, const TrainOptions& options);

/// Checks that what `predict` (the chapter's formulas) says for each rank fits into the memory of rank 0's host, or GPU, for all
/// ranks there, before anything is allocated: a machine that begins to swap can hardly be stopped. Sizes so large that
/// formulas would overflow are refused without calling it. Collective like check_files().
void check_memory(Communicator& world, const TrainOptions& options, const std::function<MemoryPrediction()>& predict);

/// A program's main: parses the command line, becomes ranks, and runs `body` on each. --help and a refused
/// command line are printed once, whatever the number of ranks. Returns the exit code.
int run_program(OptionTable& table, const TrainOptions& options, int argc, const char* const* argv,
                const std::function<void(Communicator& world)>& body);

/// How the options want ranks to be made.
LaunchOptions launch_options(const TrainOptions& options);

}  // namespace escalera
