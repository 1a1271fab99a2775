// The shape of a Llama-family model, under the names of Hugging Face's config.json.
// defines: ModelConfig, Recompute, load_model_config(), to_json()
#pragma once

#include <string>

#include "common/core/dtype.h"

namespace escalera {

/// Which activations are computed again in backward instead of being kept.
enum class Recompute {
  none,       ///< keep everything that backward reads
  selective,  ///< compute the outputs of the norms and of SwiGLU again: cheap passes over what is kept anyway
  full,       ///< keep only the input of each block and run its forward again
};

/// Sizes and constants of the model. The defaults are those of Hugging Face's LlamaConfig where it has one.
struct ModelConfig {
  Index vocab_size = 256;                ///< V, rows of embedding and head
  Index hidden_size = 128;               ///< H, width of the residual stream
  Index intermediate_size = 352;         ///< F, width of the feed-forward layers
  Index num_hidden_layers = 4;           ///< L, blocks
  Index num_attention_heads = 8;         ///< query heads
  Index num_key_value_heads = 4;         ///< equal to the query heads: no grouping
  Index head_dim = 0;                    ///< 0: hidden_size / num_attention_heads
  Index max_position_embeddings = 2048;  ///< longest sequence
  double rope_theta = 10000.0;           ///< base of the rotary angles
  double rms_norm_eps = 1e-5;            ///< added to the mean square under the root
  /// Standard deviation of the initial matrices. Those that write into the residual stream (o_proj, down_proj) start
  /// smaller by 1 / sqrt(2 num_hidden_layers), as in GPT-2.
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;  ///< whether the head uses the embedding's matrix

  /// Columns of each head: head_dim, or what takes its place.
  Index head_size() const { return head_dim > 0 ? head_dim : hidden_size / num_attention_heads; }

  /// Throws UsageError, naming the options and the numbers that clash and a value that works, unless the sizes describe a
  /// model: all positive, heads a multiple of kv heads, hidden size a multiple of heads (or head_dim given), even head size.
  void validate() const;
};

/// A model from a preset's name (configs/models/NAME.json), from a path to a config.json, or from a folder that holds one.
/// Throws UsageError for an unknown name (with the nearest one and the list), a key with the wrong type, and settings that
/// this project does not have (attention or MLP bias, RoPE scaling, sliding windows, another architecture).
ModelConfig load_model_config(const std::string& name_or_path);

/// The text of a config.json that transformers loads as LlamaForCausalLM. `dtype` is the type of the weights.
std::string to_json(const ModelConfig& config, DType dtype);

}  // namespace escalera
