// Runs of programs whose outputs are compared with those of one process.
// defines: ComparedRuns
#pragma once

#include <string>

#include "tests/support/program_run.h"

namespace escalera {

/// A fixture with a folder and a text of its own. A run called NAME leaves NAME.gradients (--dump-gradients), NAME/ (--export) and
/// NAME.jsonl (--metrics) in the folder.
class ComparedRuns : public testing::Test {
 protected:
  /// Options of two float64 SGD steps with a learning rate and a clip that are felt in the weights.
  Words two_steps(const std::string& name, const std::string& global_batch, const std::string& clip) const;
  /// Losses, gradient norms, validation losses, gradients and weights agree to 1e-10, relatively.
  void expect_same_numbers(const std::string& name, const std::string& reference) const;
  /// Losses, gradients and weights are the same bits.
  void expect_same_bits(const std::string& name, const std::string& reference) const;
  /// Every gradient norm of the run is above `clip`, so that clipping is proved too.
  void expect_clipped(const std::string& name, double clip) const;

  TemporaryDirectory folder_;
  std::string text_ = folder_.write("text.txt", repetitive_text(6000));
};

}  // namespace escalera
