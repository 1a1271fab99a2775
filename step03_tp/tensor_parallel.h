// Step 3, the idea: the ranks of a group share out every matrix. Each computes with its slice, and a collective in front of or
// behind a pair of linears makes whole what the slices found.
// new: TensorParallel, a TensorRegion with Megatron's f and g, with or without sequence parallelism
#pragma once

#include <array>
#include <memory>
#include <string>

#include "common/comm/communicator.h"
#include "common/model/config.h"
#include "common/model/tensor_region.h"

namespace escalera {

/// How a group of tensor-parallel ranks works.
struct TensorParallelSettings {
  bool sequence_parallel =
      false;  ///< norms and residual sums on 1/t of the rows each, instead of on all rows by every rank
  bool overlap = false;        ///< collectives run beside the products that do not need them
  bool kv_replication = true;  ///< whether several ranks may hold the same key/value head
};

/// The region between a linear split by output columns (q, k, v; gate, up; the head) and one split by input columns (o; down),
/// shared out over the t ranks of a group. T rows of activations enter and leave it:
///
///                            f forward       f backward      g forward       g backward
///     plain                  identity        all_reduce      all_reduce      identity
///     sequence parallel      all_gather      reduce_scatter  reduce_scatter  all_gather
///
/// Outside the region every rank has all T rows (plain), or rank r has rows [r T/t, (r+1) T/t) (sequence parallel).
class TensorParallel final : public TensorRegion {
 public:
  /// Collective over `group`, which must outlive it, as must `ops`. Throws UsageError as validate() does.
  TensorParallel(Ops& ops, Communicator& group, const ModelConfig& model,
                 const TensorParallelSettings& settings);

  /// Throws UsageError, naming the options and numbers that clash and values that work, unless `ranks` of `world` ranks can share
  /// out the heads, the key/value heads, the feed-forward width and the vocabulary of `model`.
  static void validate(const ModelConfig& model, int ranks, int world, const TensorParallelSettings& settings);
  /// The same for rows: sequence parallelism needs equally many of `micro_batch_size` * `seq_length` on each rank. A sequence may
  /// have `longest` tokens.
  static void validate_rows(Index micro_batch_size, Index seq_length, Index longest, int ranks,
                            const TensorParallelSettings& settings);
  /// "--tp 4 --dp 2": the most ranks, up to `ranks`, among which validate() would accept to share out `model` on `world` ranks.
  static std::string instead_of(int ranks, const ModelConfig& model, int world, const TensorParallelSettings& settings);

  // ---- f and g ----------------------------------------------------------------------------------------------------
  Tensor enter(const Tensor& x) override;
  Tensor partial_sum(Index rows, Index columns, DType dtype, MemoryCategory category) override;
  Tensor exit(const Tensor& partial, MemoryCategory category) override;
  Tensor enter_backward(const Tensor& partial_dx) override;
  Tensor exit_backward(const Tensor& dy) override;

  // ---- the same around products, where settings.overlap lets one run behind the other -------------------------------
  Tensor column_linear(const Tensor& x, const LinearRef& w, MemoryCategory category) override;
  Tensor row_linear(const Tensor& x, const LinearRef& w, MemoryCategory category) override;
  Tensor column_linear_backward(const Tensor& dy, const Tensor& x, const LinearRef& w,
                                WeightWork& work) override;
  Tensor row_linear_backward(const Tensor& dy, const Tensor& x, const LinearRef& w,
                             WeightWork& work) override;

  // ---- a loss over a split vocabulary -------------------------------------------------------------------------------
  void row_max(const Tensor& values) override;
  void row_sum(const Tensor& values) override;
  double share() const override;

  // ---- who holds what -----------------------------------------------------------------------------------------------
  Slice split(Index size) const override;
  Slice kv_heads(Index heads) const override;
  Slice inside(Index size) const override;
  Slice outside(Index size) const override;
  Slice vocabulary(Index size) const override;

  /// The ranks that hold the same key/value heads; null where no two ranks do.
  Communicator* kv_group() const { return kv_group_.get(); }
  /// Records the pieces of overlapped products on the row "compute". Null for none.
  void set_trace(Trace* trace) { trace_ = trace; }

 private:
  /// Rows [begin, begin + rows) of a rank's own, gathered or summed by themselves.
  struct Half {
    Index begin = 0, rows = 0;
  };
  static std::array<Half, 2> halves_of(Index rows);
  bool in_halves(Index rows) const;
  template <class Use>
  void gather_in_halves(const Tensor& x, Use use);
  Tensor empty(Index rows, Index columns, DType dtype, MemoryCategory category) const;
  std::shared_ptr<void> span(const char* name) const;

  Communicator& group_;
  TensorParallelSettings settings_;
  std::unique_ptr<Communicator> kv_group_;
  Trace* trace_ = nullptr;
};

}  // namespace escalera
