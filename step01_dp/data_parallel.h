// Step 1, the idea: every rank has the whole model and its own part of the batch; gradients are summed over ranks.
// new: DataParallel, a UnitHooks that decides when and in which pieces the sum is taken
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/comm/communicator.h"
#include "common/model/unit.h"

namespace escalera {

/// When gradients are reduced, and how many calls it takes.
enum class DpMode {
  naive,       ///< one blocking all_reduce per parameter after the last backward
  bucketed,    ///< one blocking all_reduce per bucket after the last backward
  overlapped,  ///< one asynchronous all_reduce per bucket as soon as it is complete, while backward goes on
};

/// "naive", "bucketed", "overlapped".
std::string_view to_string(DpMode mode);

/// Sums gradients over the ranks of `group`. With accumulation nothing is sent before the last micro-batch: sums of sums
/// are sums. Losses are divided by the number of targets of the global batch before backward (MicroBatch::loss_scale), so
/// a plain sum is all that is needed and nothing is averaged afterwards.
class DataParallel final : public UnitHooks {
 public:
  /// `bucket_bytes`: gradients of neighbouring units travel together until they reach this size; 0 makes each unit a bucket of
  /// its own. `group` must outlive this object.
  DataParallel(Communicator& group, DpMode mode, Index bucket_bytes);

  /// Collects what is complete after a unit's backward on the last micro-batch; in overlapped mode starts its sum.
  void after_weight_gradients(Unit& unit, bool last_micro_batch) override;

  /// Blocks until all gradients are summed. To be called once per step, after the last backward.
  void finish_step();

 private:
  void add(const BufferView& gradients);
  void reduce(const BufferView& gradients);

  Communicator& group_;
  DpMode mode_;
  Index bucket_bytes_;
  std::optional<BufferView> filling_;  // the bucket that still grows: a stretch of the flat gradients
  std::vector<BufferView> complete_;   // naive and bucketed: waiting for finish_step()
  std::vector<Work> in_flight_;        // overlapped: being summed
};

}  // namespace escalera
