#include "common/core/memory.h"

#include <algorithm>

namespace escalera {

std::string_view to_string(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::parameters: return "parameters";
    case MemoryCategory::gradients: return "gradients";
    case MemoryCategory::optimizer: return "optimizer";
    case MemoryCategory::activations: return "activations";
    case MemoryCategory::communication: return "communication";
    case MemoryCategory::workspace: return "workspace";
  }
  return "unknown";
}

void MemoryLedger::add(MemoryCategory category, Index bytes) {
  require(limit_ == 0 || total_ + bytes <= limit_,
          "out of memory: {} bytes more for {} on top of {} bytes in use exceed the limit of {} bytes (--memory-limit)",
          bytes, to_string(category), total_, limit_);
  const auto slot = static_cast<std::size_t>(category);
  current_[slot] += bytes;
  total_ += bytes;
  peak_[slot] = std::max(peak_[slot], current_[slot]);
  peak_total_ = std::max(peak_total_, total_);
}

void MemoryLedger::remove(MemoryCategory category, Index bytes) noexcept {
  current_[static_cast<std::size_t>(category)] -= bytes;
  total_ -= bytes;
}

void MemoryLedger::reset_peaks() {
  peak_ = current_;
  peak_total_ = total_;
}

}  // namespace escalera
