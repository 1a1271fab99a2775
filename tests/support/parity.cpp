#include "tests/support/parity.h"

#include <algorithm>
#include <cmath>

#include "common/core/philox.h"

namespace escalera {

ModelConfig parity_model(bool tied) {
  ModelConfig config;
  config.vocab_size = 61;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 32;
  config.initializer_range = 0.15;  // large enough that attention is far from uniform
  config.tie_word_embeddings = tied;
  return config;
}

ParityBatch::ParityBatch(const ModelConfig& config, Index step, Index sequences_) : sequences(sequences_) {
  for (Index sequence = 0; sequence < sequences; sequence++) {
    const auto row = static_cast<std::uint64_t>(step * sequences + sequence);
    // The share of targets that count differs from sequence to sequence.
    const double share = 0.15 + 0.8 * uniform(7, row, 0);
    for (Index t = 0; t < length; t++) {
      const auto at = static_cast<std::uint64_t>(t);
      const auto token = [&](std::uint64_t place) {
        return static_cast<std::int32_t>(uniform(5, row, place) * static_cast<double>(config.vocab_size));
      };
      bool counts = uniform(11, row, at) < share;
      if (sequence == 0) counts = t == 5;
      if (sequence == 1) counts = false;
      tokens.push_back(token(at));
      targets.push_back(counts ? token(at + 1) : -1);
    }
  }
}

Index ParityBatch::unmasked_targets() const {
  return std::count_if(targets.begin(), targets.end(), [](std::int32_t target) { return target >= 0; });
}

MicroBatch ParityBatch::micro_batch(Index first, Index count, std::span<const std::int32_t> positions) const {
  MicroBatch result;
  result.sequences = count;
  result.sequence_length = length;
  result.tokens = std::span(tokens).subspan(static_cast<std::size_t>(first * length),
                                            static_cast<std::size_t>(count * length));
  result.targets = std::span(targets).subspan(static_cast<std::size_t>(first * length),
                                              static_cast<std::size_t>(count * length));
  result.positions = positions;
  result.loss_scale = 1.0 / static_cast<double>(unmasked_targets());
  result.global_sequences = sequences;
  return result;
}

NamedTensors record_gradients(Model& model) {
  NamedTensors all;
  for (const Bucket& bucket : model.buckets()) {
    for (std::size_t i = 0; i < bucket.parameters.size(); i++) {
      all[bucket.parameters[i].name] = to_host(model.ops().device(), bucket.gradient(static_cast<int>(i)));
    }
  }
  return all;
}

NamedTensors record_weights(Model& model) {
  NamedTensors all;
  for (const Bucket& bucket : model.buckets()) {
    for (const Parameter& parameter : bucket.parameters) {
      all[parameter.name] =
          to_host(model.ops().device(), bucket.master.slice_flat(parameter.offset, parameter.local_size()));
    }
  }
  return all;
}

void initialize_rounded(Model& model, std::uint64_t seed, DType rounding) {
  model.initialize(seed);
  for (Bucket& bucket : model.buckets()) {
    std::vector<double> values = to_host(model.ops().device(), bucket.master);
    for (double& value : values) {
      value = dispatch(rounding, [&]<class T>() {
        return static_cast<double>(static_cast<Accumulator<T>>(static_cast<T>(static_cast<Accumulator<T>>(value))));
      });
    }
    from_host(model.ops().device(), values, bucket.master);
    model.ops().convert(bucket.master, bucket.weight_shard);
  }
}

double relative_error(const std::vector<double>& got, const std::vector<double>& reference) {
  if (got.size() != reference.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); i++) {
    difference += (got[i] - reference[i]) * (got[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  return std::isfinite(error) ? error : INFINITY;  // a NaN must not slip through a comparison
}

LargestError largest_error(const RunRecord& got, const RunRecord& reference) {
  LargestError largest;
  const auto check = [&](const std::vector<double>& a, const std::vector<double>& b,
                         const std::string& where) {
    const double error = relative_error(a, b);
    if (error >= largest.value) largest = {error, where};
  };
  const auto check_all = [&](const NamedTensors& a, const NamedTensors& b, const std::string& what) {
    if (a.size() != b.size()) largest = {INFINITY, what + ": another number of tensors"};
    for (const auto& [name, values] : b) {
      const auto found = a.find(name);
      check(found == a.end() ? std::vector<double>{} : found->second, values, what + " of " + name);
    }
  };
  check(got.losses, reference.losses, "loss");
  check(got.norms, reference.norms, "norm");
  if (got.gradients.size() != reference.gradients.size()) return {INFINITY, "number of steps"};
  for (std::size_t step = 0; step < reference.gradients.size(); step++) {
    check_all(got.gradients[step], reference.gradients[step], "gradient in step " + std::to_string(step + 1));
  }
  check_all(got.weights, reference.weights, "weight");
  return largest;
}

}  // namespace escalera
