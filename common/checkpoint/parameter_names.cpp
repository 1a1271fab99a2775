#include "common/checkpoint/parameter_names.h"

#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

namespace escalera {
namespace {

/// "model.layers.3.mlp.up_proj.weight" as 3 and the rest; nothing for other names.
std::optional<std::pair<Index, std::string>> split_layer(std::string_view name) {
  constexpr std::string_view prefix = "model.layers.";
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  Index layer = 0;
  const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || rest == name.data() + name.size() || *rest != '.') return std::nullopt;
  return std::pair(layer, std::string(rest + 1, name.data() + name.size()));
}

}  // namespace

std::vector<Index> hugging_face_shape(const Parameter& parameter) {
  // Weight decay is what tells norms from matrices in the record; the number of rows does not (a vocabulary of one).
  if (parameter.rows == 1 && !parameter.decay) return {parameter.columns};
  return {parameter.rows, parameter.columns};
}

NameCheck::NameCheck(const Model& model)
    : layers_(model.config().num_hidden_layers),
      // These exist once. A tied head is the embedding, but files may hold it all the same.
      names_{"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"} {
  for (const Bucket& bucket : model.buckets()) {
    for (const Parameter& parameter : bucket.parameters) {
      if (const auto place = split_layer(parameter.name)) {
        in_layers_.insert(place->second);
      } else {
        names_.insert(parameter.name);
      }
    }
  }
}

bool NameCheck::known(const std::string& name) const {
  const auto place = split_layer(name);
  if (!place) return names_.contains(name);
  // Old files of Llama hold the frequencies of the rotary embedding; they follow from the configuration.
  if (place->second == "self_attn.rotary_emb.inv_freq") return true;
  // A stage without layers has nothing to compare with.
  return place->first >= 0 && place->first < layers_ &&
         (in_layers_.empty() || in_layers_.contains(place->second));
}

}  // namespace escalera
