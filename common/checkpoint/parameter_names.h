// How a parameter record looks in Hugging Face's files.
// defines: hugging_face_shape(), NameCheck
#pragma once

#include <set>
#include <string>
#include <vector>

#include "common/model/model.h"

namespace escalera {

/// The shape of a parameter in a file: norms are vectors, all others matrices (even those with one row).
std::vector<Index> hugging_face_shape(const Parameter& parameter);

/// Tells names that a file of this model may hold from names that it may not, on a rank that may itself hold only a part:
/// a tensor of a layer is known if this rank holds its like in any layer.
class NameCheck {
 public:
  /// Learns the names from the parameters that `model` holds.
  explicit NameCheck(const Model& model);

  /// Whether the model has a place for `name`, on this rank or on another.
  bool known(const std::string& name) const;

 private:
  Index layers_;
  std::set<std::string> names_;      // outside of layers
  std::set<std::string> in_layers_;  // behind "model.layers.N."
};

}  // namespace escalera
