// Counted memory: every byte that a tensor holds belongs to a category, so that a run can print what it measured
// beside what a formula predicts.
// defines: MemoryCategory, MemoryLedger
#pragma once

#include <array>
#include <string_view>

#include "common/core/dtype.h"

namespace escalera {

/// What a block of memory is for.
enum class MemoryCategory {
  parameters,     ///< weights in the type that the model computes with
  gradients,      ///< accumulated weight gradients
  optimizer,      ///< master weights and moments
  activations,    ///< saved between forward and backward, and temporaries of both
  communication,  ///< staging buffers of collectives
  workspace,      ///< scratch of single operations, tables, inputs
};

/// Number of categories, for arrays with a slot for each.
inline constexpr int memory_category_count = 6;

/// "parameters", "gradients", ...
std::string_view to_string(MemoryCategory category);

/// Bytes held now and at most so far, by category. The numbers are added up from real allocations and never from a
/// formula. Not thread-safe: a ledger belongs to one rank.
class MemoryLedger {
 public:
  /// Books `bytes`. Throws Error, naming category and bytes, if the total would exceed limit().
  void add(MemoryCategory category, Index bytes);
  /// Takes back what add() booked.
  void remove(MemoryCategory category, Index bytes) noexcept;

  /// Bytes held now and the most held at once since reset_peaks(), of one category and of all together. The peak of the
  /// total may be less than the sum of the peaks.
  /// @{
  Index current(MemoryCategory category) const { return current_[static_cast<std::size_t>(category)]; }
  Index peak(MemoryCategory category) const { return peak_[static_cast<std::size_t>(category)]; }
  Index current_total() const { return total_; }
  Index peak_total() const { return peak_total_; }
  /// @}

  /// Forgets the peaks: they start again from what is held now.
  void reset_peaks();

  /// The most bytes that may be held at once; 0 means no limit.
  /// @{
  Index limit() const { return limit_; }
  void set_limit(Index bytes) { limit_ = bytes; }
  /// @}

 private:
  std::array<Index, memory_category_count> current_{};
  std::array<Index, memory_category_count> peak_{};
  Index total_ = 0;
  Index peak_total_ = 0;
  Index limit_ = 0;
};

}  // namespace escalera
