#include "common/model/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/core/nearest_name.h"
#include "common/model/json_file.h"

namespace escalera {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// ---- Finding the file -----------------------------------------------------------------------------------------------

/// The folder of presets: where ESCALERA_CONFIGS points, else in the sources that this program was built from, else here.
fs::path presets_folder() {
  if (const char* configured = std::getenv("ESCALERA_CONFIGS");
      configured != nullptr && *configured != '\0') {
    return fs::path(configured) / "models";
  }
#ifdef ESCALERA_SOURCE_DIR
  if (std::error_code ignored;
      fs::is_directory(fs::path(ESCALERA_SOURCE_DIR) / "configs" / "models", ignored)) {
    return fs::path(ESCALERA_SOURCE_DIR) / "configs" / "models";
  }
#endif
  return fs::path("configs") / "models";
}

/// "meta-llama/Meta-Llama-3-8B" and "llama-3-8b" are the same preset: the owner, "Meta-" and letter case do not count.
std::string preset_name(const std::string& name) {
  std::string result = name.substr(name.rfind('/') + 1);  // npos + 1 is 0: no owner
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return result.starts_with("meta-") ? result.substr(5) : result;
}

std::vector<std::string> preset_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator file(folder, error), end; !error && file != end; file.increment(error)) {
    if (file->path().extension() == ".json") names.push_back(file->path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

fs::path find_config(const std::string& name_or_path) {
  std::error_code ignored;
  if (fs::is_directory(name_or_path, ignored)) {
    const fs::path file = fs::path(name_or_path) / "config.json";
    require<UsageError>(fs::is_regular_file(file, ignored), "--model {}: the folder has no config.json",
                        name_or_path);
    return file;
  }
  if (fs::is_regular_file(name_or_path, ignored)) return name_or_path;

  const fs::path folder = presets_folder();
  const std::string preset = preset_name(name_or_path);
  const std::vector<std::string> names = preset_names(folder);
  if (std::find(names.begin(), names.end(), preset) != names.end()) return folder / (preset + ".json");
  require<UsageError>(!name_or_path.ends_with(".json"), "--model {}: there is no such file", name_or_path);
  require<UsageError>(
      !names.empty(),
      "--model {}: no presets were found in {}; set ESCALERA_CONFIGS to the configs folder of the "
      "project, or give the path of a config.json",
      name_or_path, folder.string());
  const std::string nearest = nearest_name(preset, names);
  fail<UsageError>("--model {}: neither a file or folder nor a preset{}; presets are {}", name_or_path,
                   nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest),
                   fmt::join(names, ", "));
}

// ---- Reading the keys -----------------------------------------------------------------------------------------------

/// A config.json with the place of errors.
class Keys {
 public:
  Keys(std::string file, const Json& json) : file_(std::move(file)), json_(json) {}

  /// null counts as absent, as in transformers.
  bool has(const std::string& key) const { return json_.contains(key) && !json_.at(key).is_null(); }

  Index integer(const std::string& key) const {
    require<UsageError>(has(key), "{}: the key {} is missing", file_, key);
    const Json& value = json_.at(key);
    require<UsageError>(value.is_number_integer(), "{}: {} must be a whole number, not {}", file_, key,
                        value.dump());
    require<UsageError>(!value.is_number_unsigned() || value.get<std::uint64_t>() <= std::uint64_t{1} << 40,
                        "{}: {} = {} is too large", file_, key, value.dump());
    return value.get<Index>();
  }
  Index integer(const std::string& key, Index otherwise) const { return has(key) ? integer(key) : otherwise; }

  double real(const std::string& key, double otherwise) const {
    if (!has(key)) return otherwise;
    const Json& value = json_.at(key);
    require<UsageError>(value.is_number(), "{}: {} must be a number, not {}", file_, key, value.dump());
    return value.get<double>();
  }

  bool boolean(const std::string& key, bool otherwise) const {
    if (!has(key)) return otherwise;
    const Json& value = json_.at(key);
    require<UsageError>(value.is_boolean(), "{}: {} must be true or false, not {}", file_, key, value.dump());
    return value.get<bool>();
  }

  std::string text(const std::string& key, const std::string& otherwise) const {
    if (!has(key)) return otherwise;
    const Json& value = json_.at(key);
    require<UsageError>(value.is_string(), "{}: {} must be text, not {}", file_, key, value.dump());
    return value.get<std::string>();
  }

 private:
  std::string file_;
  const Json& json_;
};

/// Refuses what would make the model another one than this project computes.
void refuse_other_models(const std::string& file, const Json& json) {
  const Keys keys(file, json);
  const std::string type = keys.text("model_type", "llama");
  require<UsageError>(type == "llama", "{}: model_type {} is not supported; llama is", file, type);
  if (keys.has("architectures")) {
    const Json& names = json.at("architectures");
    require<UsageError>(
        names.is_array() && std::find(names.begin(), names.end(), "LlamaForCausalLM") != names.end(),
        "{}: architectures {} is not supported; [\"LlamaForCausalLM\"] is", file, names.dump());
  }
  const std::string activation = keys.text("hidden_act", "silu");
  require<UsageError>(activation == "silu" || activation == "swish",
                      "{}: hidden_act {} is not supported; silu is", file, activation);
  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    require<UsageError>(!keys.boolean(bias, false),
                        "{}: {} = true is not supported: no matrix here has a bias", file, bias);
  }
  require<UsageError>(keys.real("attention_dropout", 0.0) == 0.0,
                      "{}: attention_dropout is not supported; 0 is", file);
  require<UsageError>(!keys.has("sliding_window"), "{}: sliding_window is not supported", file);
  // Older files say rope_scaling, newer ones rope_parameters; both name the kind under rope_type or type.
  for (const char* scaling : {"rope_scaling", "rope_parameters"}) {
    if (!keys.has(scaling)) continue;
    require<UsageError>(json.at(scaling).is_object(), "{}: {} must be an object, not {}", file, scaling,
                        json.at(scaling).dump());
    const Keys inner(file, json.at(scaling));
    const std::string kind = inner.text("rope_type", inner.text("type", "default"));
    require<UsageError>(kind == "default", "{}: {} of type {} is not supported; only unscaled RoPE is", file,
                        scaling, kind);
  }
}

/// transformers ignores keys that it does not know, and so do we, unless one looks like a slip for a key that is not
/// there.
void refuse_slips(const std::string& file, const Json& json) {
  static const std::vector<std::string> known = {
      "vocab_size",          "hidden_size",         "intermediate_size", "num_hidden_layers",
      "num_attention_heads", "num_key_value_heads", "head_dim",          "max_position_embeddings",
      "rope_theta",          "rms_norm_eps",        "initializer_range", "tie_word_embeddings"};
  for (const auto& [key, value] : json.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string nearest = nearest_name(key, known);
    require<UsageError>(nearest.empty() || json.contains(nearest), "{}: unknown key {}; did you mean {}?",
                        file, key, nearest);
  }
}

}  // namespace

void ModelConfig::validate() const {
  const auto positive = [](const char* option, Index value) {
    constexpr Index most = std::numeric_limits<std::int32_t>::max();
    require<UsageError>(value >= 1 && value <= most, "{} must be from 1 to {}, not {}", option, most, value);
  };
  positive("--vocab-size", vocab_size);
  positive("--hidden-size", hidden_size);
  positive("--intermediate-size", intermediate_size);
  positive("--num-hidden-layers", num_hidden_layers);
  positive("--num-attention-heads", num_attention_heads);
  positive("--num-key-value-heads", num_key_value_heads);
  positive("--max-position-embeddings", max_position_embeddings);
  require<UsageError>(head_dim >= 0, "--head-dim must be at least 2 (or 0: hidden size / heads), not {}",
                      head_dim);

  // As real numbers: with sizes that nobody means, the exact count would overflow.
  const auto width = static_cast<double>(hidden_size), vocabulary = static_cast<double>(vocab_size);
  const double per_layer = width * (3.0 * static_cast<double>(intermediate_size) +
                                    2.0 * static_cast<double>(num_attention_heads + num_key_value_heads) *
                                        static_cast<double>(std::max<Index>(head_dim, 1)));
  const double parameters = 2 * vocabulary * width + static_cast<double>(num_hidden_layers) * per_layer;
  require<UsageError>(parameters < 1e14,
                      "--num-hidden-layers {}, --hidden-size {}, --intermediate-size {} and --vocab-size {} make about {:.0e} "
                      "parameters, more than any machine holds",
                      num_hidden_layers, hidden_size, intermediate_size, vocab_size, parameters);

  const Index heads = num_attention_heads, kv_heads = num_key_value_heads;
  if (heads % kv_heads != 0) {
    Index works = std::min(heads, kv_heads);
    while (heads % works != 0) --works;
    fail<UsageError>(
        "--num-attention-heads {} is not a multiple of --num-key-value-heads {}; {} key/value heads would "
        "work",
        heads, kv_heads, works);
  }
  if (head_dim == 0 && hidden_size % heads != 0) {
    // Head sizes are even (RoPE turns pairs), so the nearest hidden size that works is a multiple of twice the heads.
    const Index works = (hidden_size / (2 * heads) + 1) * 2 * heads;
    fail<UsageError>(
        "--hidden-size {} is not a multiple of --num-attention-heads {}; {} would work, or give --head-dim",
        hidden_size, heads, works);
  }
  if (head_size() % 2 != 0) {
    fail<UsageError>(
        "the head size is {} (--hidden-size {}, --num-attention-heads {}, --head-dim {}), but RoPE turns "
        "pairs and needs an even one; --head-dim {} would work",
        head_size(), hidden_size, heads, head_dim, head_size() + 1);
  }
  require<UsageError>(std::isfinite(rope_theta) && rope_theta > 0, "--rope-theta must be positive, not {}",
                      rope_theta);
  require<UsageError>(std::isfinite(rms_norm_eps) && rms_norm_eps > 0,
                      "--rms-norm-eps must be positive, not {}", rms_norm_eps);
  require<UsageError>(std::isfinite(initializer_range) && initializer_range >= 0,
                      "--initializer-range must not be negative, but is {}", initializer_range);
}

ModelConfig load_model_config(const std::string& name_or_path) {
  const fs::path path = find_config(name_or_path);
  const std::string file = path.string();
  const Json json = read_json_file(file);
  refuse_slips(file, json);
  refuse_other_models(file, json);

  // Keys without which no model can be built must be there; the others fall back to what LlamaConfig says.
  const Keys keys(file, json);
  ModelConfig config;
  config.vocab_size = keys.integer("vocab_size");
  config.hidden_size = keys.integer("hidden_size");
  config.intermediate_size = keys.integer("intermediate_size");
  config.num_hidden_layers = keys.integer("num_hidden_layers");
  config.num_attention_heads = keys.integer("num_attention_heads");
  config.num_key_value_heads = keys.integer("num_key_value_heads", config.num_attention_heads);
  config.head_dim = keys.integer("head_dim", 0);
  config.max_position_embeddings = keys.integer("max_position_embeddings", 2048);
  config.rope_theta = keys.real("rope_theta", 10000.0);
  if (keys.has("rope_parameters")) {
    config.rope_theta = Keys(file, json.at("rope_parameters")).real("rope_theta", config.rope_theta);
  }
  config.rms_norm_eps = keys.real("rms_norm_eps", 1e-6);
  config.initializer_range = keys.real("initializer_range", 0.02);
  config.tie_word_embeddings = keys.boolean("tie_word_embeddings", false);
  try {
    config.validate();
  } catch (const UsageError& error) {
    fail<UsageError>("{}: {}", file, error.what());
  }
  return config;
}

std::string to_json(const ModelConfig& config, DType dtype) {
  nlohmann::ordered_json json;
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = "llama";
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = config.num_key_value_heads;
  json["head_dim"] = config.head_size();
  json["hidden_act"] = "silu";
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rope_theta"] = config.rope_theta;
  json["rope_scaling"] = nullptr;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
  // Bytes are tokens: none of them marks a beginning or an end, and transformers' defaults (1 and 2) would.
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  json["torch_dtype"] = to_string(dtype);
  return json.dump(2) + "\n";
}

}  // namespace escalera
