// Which tokens add to which row of an embedding's gradient, sorted on the host so that the device adds in a fixed order.
// defines: EmbeddingPlan
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/core/dtype.h"
#include "common/ops/cuda/kernels.h"

namespace escalera::cuda {

/// Made anew for each list of tokens; memory is kept from call to call.
class EmbeddingPlan {
 public:
  /// The most terms that are added one after the other.
  static constexpr int segment_length = 128;

  /// Sorts the tokens of rows [first_row, first_row + rows), and leaves out the others. A row that occurs up to
  /// segment_length times adds its tokens to the gradient in order of t. A row that occurs more often (a language's most
  /// common token) is cut into segments of that many, each added in order of t from zero, and their sums are added to the
  /// gradient in order: blocks share the work, and no thread adds thousands of terms alone.
  void make(std::span<const std::int32_t> tokens, Index first_row, Index rows);

  int segments() const { return segments_; }
  int totals() const { return totals_; }
  /// Rows of float32 that the sums of segments wait in.
  int slots() const { return slots_; }
  /// For one upload: the segments, then the totals, then the order of the terms.
  std::span<const std::int32_t> data() const { return data_; }
  /// Where each begins when `base` is the copy of data() in device memory.
  /// @{
  const EmbeddingSegment* segments_at(const std::int32_t* base) const {
    return reinterpret_cast<const EmbeddingSegment*>(base);
  }
  const EmbeddingSegment* totals_at(const std::int32_t* base) const { return segments_at(base) + segments_; }
  const int* order_at(const std::int32_t* base) const { return base + (segments_ + totals_) * ints_per_segment; }
  /// @}

 private:
  static constexpr int ints_per_segment = sizeof(EmbeddingSegment) / sizeof(std::int32_t);

  int segments_ = 0, totals_ = 0, slots_ = 0;
  std::vector<std::int32_t> counts_;    // by row; all zero between calls
  std::vector<std::int32_t> distinct_;  // the rows that occur, in order of their first token
  std::vector<std::int32_t> data_;
};

}  // namespace escalera::cuda
