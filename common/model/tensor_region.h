// Seam: what surrounds a column-row pair of linears. One rank holds whole layers, so here everything is the identity.
// defines: LinearRef, TensorRegion
#pragma once

#include "common/model/parameter.h"
#include "common/model/weight_work.h"
#include "common/ops/ops.h"

namespace escalera {

/// A linear layer's weight [N, K] and where its gradient goes.
struct LinearRef {
  Tensor weight;    ///< in the model's type
  Tensor gradient;  ///< wide, same shape; added to
};

/// The region of a block in which a layer may be split over ranks: between a linear split by output columns and the next
/// one split by input rows. Its functions are the two conjugate pairs of Shoeybi et al. 2019: `enter` is f, `exit` is g.
/// The base class is the region of one rank. A chapter derives from it.
class TensorRegion {
 public:
  /// `ops` must outlive it.
  explicit TensorRegion(Ops& ops) : ops_(ops) {}
  virtual ~TensorRegion() = default;

  // ---- activations on their way in and out: x [rows outside, H], partial [rows inside, H] ------------------------
  /// x as each rank of the region needs it, and the sum of what they found, booked under `category`.
  /// @{
  virtual Tensor enter(const Tensor& x) { return x; }
  virtual Tensor exit(const Tensor& partial, MemoryCategory /*category*/) { return partial; }
  /// @}
  /// Memory [rows, columns] for what is given to exit. What exit returns is booked under `category`; this is too if it is the
  /// same memory.
  virtual Tensor partial_sum(Index rows, Index columns, DType dtype, MemoryCategory category) {
    return ops_.device().empty(rows, columns, dtype, category);
  }
  /// The gradient of enter: sums what the ranks of the region found for the same input.
  virtual Tensor enter_backward(const Tensor& partial_dx) { return partial_dx; }
  /// The gradient of exit.
  virtual Tensor exit_backward(const Tensor& dy) { return dy; }

  // ---- the pair of linears, so that a chapter may overlap a collective with half of the rows ----------------------
  /// enter(x) w^T; the result is booked under `category`.
  virtual Tensor column_linear(const Tensor& x, const LinearRef& w, MemoryCategory category);
  /// exit(x w^T), booked likewise.
  virtual Tensor row_linear(const Tensor& x, const LinearRef& w, MemoryCategory category);
  /// dx of column_linear; its weight gradient, from dy and enter(x), goes to `work`.
  virtual Tensor column_linear_backward(const Tensor& dy, const Tensor& x, const LinearRef& w, WeightWork& work);
  /// dx of row_linear; its weight gradient, from exit_backward(dy) and x, goes to `work`.
  virtual Tensor row_linear_backward(const Tensor& dy, const Tensor& x, const LinearRef& w, WeightWork& work);

  // ---- all that a loss over a split vocabulary needs; in place --------------------------------------------------
  /// The largest of, and the sum over, the ranks of the region, for each element.
  /// @{
  virtual void row_max(const Tensor& /*values*/) {}
  virtual void row_sum(const Tensor& /*values*/) {}
  /// @}
  /// 1 / ranks of the region: the weight of what all of them compute alike before it joins a sum over them.
  virtual double share() const { return 1.0; }

  // ---- which slice of each parameter this rank holds --------------------------------------------------------------
  /// Of a dimension shared out over the region.
  virtual Slice split(Index size) const { return {0, size, size}; }
  /// Of the key/value heads; more ranks than heads hold the same one.
  virtual Slice kv_heads(Index heads) const { return {0, heads, heads}; }
  /// Of a dimension that every rank holds, of a parameter used inside (a router) or outside (a norm) the region.
  /// @{
  virtual Slice inside(Index size) const { return {0, size, size}; }
  virtual Slice outside(Index size) const { return {0, size, size}; }
  /// @}
  /// Of the vocabulary, padded so that all ranks hold equally many rows.
  virtual Slice vocabulary(Index size) const { return {0, size, size}; }

 protected:
  /// For the overrides of a chapter.
  Ops& ops() const { return ops_; }

 private:
  Ops& ops_;
};

}  // namespace escalera
