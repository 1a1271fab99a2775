// Loading: everything is checked first, then read parameter by parameter.
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/checkpoint/model_folder.h"
#include "common/checkpoint/parameter_names.h"
#include "common/checkpoint/safetensors.h"
#include "common/model/json_file.h"

namespace escalera {
namespace {

namespace fs = std::filesystem;

/// "[256, 128]"
std::string to_text(const std::vector<Index>& shape) {
  std::string text;
  for (const Index dimension : shape) text += (text.empty() ? "" : ", ") + std::to_string(dimension);
  return "[" + text + "]";
}

// ---- config.json ----------------------------------------------------------------------------------------------------

/// Throws unless the folder's configuration describes the model that is to be filled. Compared is what changes shapes or
/// results; how weights began and how long texts may get does not matter for weights that are there.
void check_config(const ModelConfig& ours, const std::string& dir, const std::string& option) {
  const std::string file = (fs::path(dir) / "config.json").string();
  std::error_code ignored;
  require<UsageError>(fs::is_directory(dir, ignored), "{} {}: there is no such folder", option, dir);
  require<UsageError>(fs::is_regular_file(file, ignored), "{} {}: the folder has no config.json", option,
                      dir);
  ModelConfig theirs;
  try {
    theirs = load_model_config(file);
  } catch (const UsageError& error) {
    fail<UsageError>("{} {}", option, error.what());
  }
  const auto agree = [&](const char* key, auto in_file, auto here) {
    require<UsageError>(
        in_file == here,
        "{} {}: {} is {}, but the model to be trained has {}; with --model {} it takes all sizes from there",
        option, file, key, in_file, here, dir);
  };
  agree("vocab_size", theirs.vocab_size, ours.vocab_size);
  agree("hidden_size", theirs.hidden_size, ours.hidden_size);
  agree("intermediate_size", theirs.intermediate_size, ours.intermediate_size);
  agree("num_hidden_layers", theirs.num_hidden_layers, ours.num_hidden_layers);
  agree("num_attention_heads", theirs.num_attention_heads, ours.num_attention_heads);
  agree("num_key_value_heads", theirs.num_key_value_heads, ours.num_key_value_heads);
  agree("head_dim", theirs.head_size(), ours.head_size());
  agree("tie_word_embeddings", theirs.tie_word_embeddings, ours.tie_word_embeddings);
  agree("rope_theta", theirs.rope_theta, ours.rope_theta);
  agree("rms_norm_eps", theirs.rms_norm_eps, ours.rms_norm_eps);
}

// ---- The files with weights -----------------------------------------------------------------------------------------

/// All tensors of a folder, in one file or several.
class FolderTensors {
 public:
  FolderTensors(const std::string& dir, const std::string& option) : option_(option) {
    std::error_code ignored;
    const fs::path single = fs::path(dir) / "model.safetensors",
                   index = fs::path(dir) / "model.safetensors.index.json";
    // The order in which transformers looks for them.
    if (fs::exists(single, ignored)) {
      add_file(single.string());
      for (const auto& [name, info] : files_.front()->tensors()) place_[name] = files_.front().get();
    } else {
      require<UsageError>(fs::exists(index, ignored), "{} {}: the folder has no model.safetensors", option,
                          dir);
      read_index(dir, index.string());
    }
  }

  /// Names of tensors that can be read, and where they are.
  const std::map<std::string, const SafetensorsReader*>& places() const { return place_; }

  /// The file that holds `name`, with the shape `shape`. Throws UsageError otherwise.
  const SafetensorsReader& find(const std::string& name, const std::vector<Index>& shape) const {
    const auto found = place_.find(name);
    // With one file that is where it is missing; with several, the first stands for all.
    const SafetensorsReader& file = found == place_.end() ? *files_.front() : *found->second;
    try {
      const TensorInfo& info = file.info(name);
      require<UsageError>(info.shape == shape, "{}: tensor {} has shape {}, but the model's is {}",
                          file.path(), name, to_text(info.shape), to_text(shape));
    } catch (const Error& error) {
      fail<UsageError>("{} {}", option_, error.what());
    }
    return file;
  }

 private:
  const SafetensorsReader* add_file(const std::string& path) {
    files_.push_back(std::make_unique<SafetensorsReader>(path, option_));
    return files_.back().get();
  }

  void read_index(const std::string& dir, const std::string& index) {
    nlohmann::json json;
    try {
      json = read_json_file(index);
    } catch (const UsageError& error) {
      fail<UsageError>("{} {}", option_, error.what());
    }
    require<UsageError>(
        json.contains("weight_map") && json["weight_map"].is_object() && !json["weight_map"].empty(),
        "{} {}: weight_map, from names to files, is missing", option_, index);
    std::map<std::string, const SafetensorsReader*> opened;
    for (const auto& [name, value] : json["weight_map"].items()) {
      require<UsageError>(value.is_string(), "{} {}: weight_map.{} must be a file's name", option_, index,
                          name);
      const auto file = value.get<std::string>();
      require<UsageError>(!file.empty() && fs::path(file).filename() == file,
                          "{} {}: weight_map.{} must be a file of the same folder, not {}", option_, index,
                          name, file);
      if (!opened.contains(file)) opened[file] = add_file((fs::path(dir) / file).string());
      place_[name] = opened[file];
    }
  }

  std::string option_;
  std::vector<std::unique_ptr<SafetensorsReader>> files_;
  std::map<std::string, const SafetensorsReader*> place_;
};

/// The local elements `part` of `parameter`, with zeros for padding.
std::vector<double> read_local(const SafetensorsReader& file, const Parameter& parameter, const Range& part) {
  std::vector<double> values(static_cast<std::size_t>(part.size()), 0.0);
  parameter.for_each_stretch(part, [&](Index local, Index global, Index count) {
    const std::vector<double> piece = file.values(parameter.name, global, count);
    std::copy(piece.begin(), piece.end(), values.begin() + (local - part.begin));
  });
  return values;
}

}  // namespace

void load_weights(Model& model, const std::string& dir, const std::string& option) {
  check_config(model.config(), dir, option);
  const FolderTensors tensors(dir, option);

  // Names and shapes of everything, before the first weight changes.
  const NameCheck names(model);
  for (const auto& [name, file] : tensors.places()) {
    require<UsageError>(names.known(name), "{} {}: tensor {} has no place in this model", option,
                        file->path(), name);
  }
  for (const Bucket& bucket : model.buckets()) {
    for (const Parameter& parameter : bucket.parameters)
      tensors.find(parameter.name, hugging_face_shape(parameter));
  }

  Ops& ops = model.ops();
  for (Bucket& bucket : model.buckets()) {
    for (const Parameter& parameter : bucket.parameters) {
      const SafetensorsReader& file = tensors.find(parameter.name, hugging_face_shape(parameter));
      const Range part = bucket.in_shard(parameter);
      if (part.size() == 0) continue;
      from_host(ops.device(), read_local(file, parameter, part),
                bucket.master.slice_flat(parameter.offset + part.begin - bucket.shard_begin, part.size()));
    }
    ops.convert(bucket.master, bucket.weight_shard);
  }
}

}  // namespace escalera
