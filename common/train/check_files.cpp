// Are inputs there, and can outputs be written? Asked before a long run, not after it.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>

#include "common/comm/local_rank.h"
#include "common/cuda/cuda_backend.h"
#include "common/data/sampler.h"
#include "common/train/options.h"
#include "common/train/report.h"
#include "common/train/setup.h"
#include "common/train/text_table.h"

namespace escalera {
namespace {

namespace fs = std::filesystem;

/// access() answers for the user and the file system (read-only mounts too), and leaves the file alone.
bool may_write(const fs::path& path) {
  return access(path.c_str(), W_OK) == 0;
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// One name for each file, whether or not it is there yet.
fs::path one_name(const fs::path& path) {
  std::error_code ignored;
  return fs::weakly_canonical(fs::absolute(path), ignored);
}

void check_output_file(const char* flag, const std::string& file) {
  std::error_code ignored;
  if (fs::exists(file, ignored)) {
    require<UsageError>(!fs::is_directory(file, ignored), "{} {}: is a folder; give the name of a file in it",
                        flag, file);
    require<UsageError>(may_write(file), "{} {}: the file is there and may not be written", flag, file);
    return;
  }
  const fs::path folder = parent_of(file);
  require<UsageError>(fs::is_directory(folder, ignored),
                      "{} {}: there is no folder {}; make it first, or write "
                      "elsewhere",
                      flag, file, folder.string());
  require<UsageError>(may_write(folder), "{} {}: the folder {} may not be written to", flag, file,
                      folder.string());
}

void check_output_folder(const char* flag, const std::string& folder) {
  // It and the folders above it are made when they are needed; the nearest one that is there decides.
  std::error_code ignored;
  fs::path nearest = folder;
  while (!fs::exists(nearest, ignored) && parent_of(nearest) != nearest) nearest = parent_of(nearest);
  require<UsageError>(fs::is_directory(nearest, ignored), "{} {}: {} is not a folder", flag, folder,
                      nearest.string());
  require<UsageError>(may_write(nearest), "{} {}: the folder {} may not be written to", flag, folder,
                      nearest.string());
}

void check(const TrainOptions& options) {
  std::error_code ignored;
  if (!options.init_from.empty()) {
    require<UsageError>(fs::is_directory(options.init_from, ignored),
                        "--init-from {}: there is no such folder", options.init_from);
  }
  // Writing over what is being read would destroy it, and half of the run with it.
  std::map<fs::path, std::string> taken{{one_name(options.data), "--data"}};
  for (const auto& [flag, folder] : {std::pair<const char*, const std::string&>{"--init-from", options.init_from},
                                     {"--export", options.export_dir}}) {
    if (folder.empty()) continue;
    for (const char* name : {"config.json", "model.safetensors"}) taken.emplace(one_name(fs::path(folder) / name), flag);
  }
  for (const auto& [flag, file] : {std::pair<const char*, const std::string&>{"--metrics", options.metrics},
                                   {"--trace", options.trace},
                                   {"--dump-gradients", options.dump_gradients}}) {
    if (file.empty()) continue;
    check_output_file(flag, file);
    const auto [other, is_new] = taken.emplace(one_name(file), flag);
    require<UsageError>(is_new || fs::is_other(file, ignored),
                        "{} and {} both name {}; give each a file of its own", other->second, flag, file);
  }
  if (!options.export_dir.empty()) check_output_folder("--export", options.export_dir);
}

void check_tokens(const TrainOptions& options) {
  const TokenFile file(options.data, options.token_width);
  file.validate(options.model.vocab_size);
  const Index length = options.seq_length, sequences = options.global_batch_size.value();
  const Index tokens = split_tokens(file, validation_fraction(options), length).training.size();
  require<UsageError>(
      tokens >= sequences * length + 1,
      "--data {}: {} tokens to train on are too few for one step of {} sequences of --seq-length {}, "
      "which takes {}; there are {} sequences in it",
      options.data, tokens, sequences, length, sequences * length + 1, (tokens - 1) / length);
}

/// A layer's records on the host: names, buckets, states.
constexpr double bytes_of_records = 1e4;

void check_memory_of(const TrainOptions& options, const std::function<MemoryPrediction()>& predict, double installed, Index ranks,
                     std::string_view of_what) {
  // Gates, residuals and the records of each layer alone, as a real number: sizes that nobody means would overflow the exact
  // formulas, or keep them busy.
  const ModelConfig& model = options.model;
  double needed = static_cast<double>(options.micro_batch_size.value()) * static_cast<double>(options.seq_length) *
                  (static_cast<double>(model.num_hidden_layers) *
                       static_cast<double>(model.hidden_size + model.intermediate_size + model.head_size()) +
                   static_cast<double>(model.vocab_size)) +
                  bytes_of_records * static_cast<double>(model.num_hidden_layers);
  if (needed * static_cast<double>(ranks) <= installed) {
    const MemoryPrediction predicted = predict();
    needed = 0;
    for (const auto& bytes : predicted.bytes) needed += static_cast<double>(bytes.value_or(0));
  }
  require<UsageError>(needed * static_cast<double>(ranks) <= installed,
                      "this model and batch need {} on each of {} ranks of this {}, which has {}; take a "
                      "smaller model (--model, --hidden-size, ...), --micro-batch-size or --seq-length, or fewer ranks",
                      human_bytes(needed), ranks, of_what, human_bytes(installed));
}

double memory_of_host() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

/// Rank 0 does the writing, so its view counts; on other hosts the same path may look different.
void ask_rank_0(Communicator& world, const std::function<void()>& question) {
  std::string refusal;
  if (world.rank() == 0) {
    try {
      question();
    } catch (const UsageError& error) {
      refusal = error.what();
    }
  }
  refusal = world.gather_strings(refusal).front();
  if (!refusal.empty()) throw UsageError(refusal);
}

}  // namespace

void check_files(Communicator& world, const TrainOptions& options) {
  ask_rank_0(world, [&] { check(options); });
}

void check_data(Communicator& world, const TrainOptions& options) {
  ask_rank_0(world, [&] { check_tokens(options); });
}

void check_memory(Communicator& world, const TrainOptions& options, const std::function<MemoryPrediction()>& predict) {
  const std::vector<std::string> hosts = world.gather_strings(host_identity());
  const Index ranks_here = std::count(hosts.begin(), hosts.end(), hosts.front());
  ask_rank_0(world, [&] {
    if (options.device == DeviceKind::cpu) {
      check_memory_of(options, predict, memory_of_host(), ranks_here, "host");
    } else {
      const Index gpus = cuda_backend().device_count();
      const auto installed = static_cast<double>(cuda_backend().device_memory(0));
      check_memory_of(options, predict, installed, (ranks_here + gpus - 1) / gpus, "GPU");
    }
  });
}

}  // namespace escalera
