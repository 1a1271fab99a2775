#include "common/core/trace.h"

#include <utility>

namespace escalera {

void Trace::add(TraceEvent event) {
  std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

std::vector<TraceEvent> Trace::take() {
  for (const auto& source : sources_) source();
  std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

}  // namespace escalera
