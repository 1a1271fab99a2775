// A second Llama, written to be obviously right and sharing no line with common/model: scalar by scalar,
// without seams, and with gradients from a tape instead of by hand. defines: NamedTensors, NaiveResult,
// naive_loss(), naive_gradients()
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/model/config.h"

namespace escalera {

/// Values by parameter name, each row-major and whole.
using NamedTensors = std::map<std::string, std::vector<double>>;

/// Mean cross-entropy over unmasked targets (0 if there are none), and its gradient by parameter.
struct NaiveResult {
  double loss = 0;
  NamedTensors gradients;
};

/// Sequences are [sequences * length] tokens with targets, < 0 masked.
NaiveResult naive_gradients(const ModelConfig& config, const NamedTensors& weights,
                            std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                            Index length);

}  // namespace escalera
