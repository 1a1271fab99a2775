// Weight gradients, at once or later.
// defines: WeightWork
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/ops/ops.h"

namespace escalera {

/// The weight half of one unit's backward. By default each piece is computed as it is added; with `defer` it waits for
/// run(), which a zero-bubble schedule calls in its idle time. A deferred piece keeps its tensors alive but needs no
/// weights, so that these may be released after the input half.
class WeightWork {
 public:
  /// `ops` must outlive it; with `defer`, so must the tokens of add_embedding() until run().
  explicit WeightWork(Ops& ops, bool defer = false) : ops_(&ops), defer_(defer) {}

  /// dw [N, K] += dy [T, N]^T x [T, K].
  void add_linear(Tensor dy, Tensor x, Tensor dw);
  /// d_table += rows of dy by token, see Ops::embedding_backward.
  void add_embedding(std::span<const std::int32_t> tokens, Tensor dy, Index first_row, Tensor d_table);
  /// Computes what was deferred, in order.
  void run();

 private:
  struct Piece {
    Tensor dy, x, gradient;
    std::span<const std::int32_t> tokens;  // not empty: an embedding
    Index first_row = 0;
  };
  void compute(const Piece& piece);
  void add(Piece piece);

  Ops* ops_;
  bool defer_;
  std::vector<Piece> pieces_;
};

}  // namespace escalera
