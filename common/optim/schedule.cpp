#include "common/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace escalera {

std::string_view to_string(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::constant:
      return "constant";
    case ScheduleKind::cosine:
      return "cosine";
    case ScheduleKind::wsd:
      return "wsd";
  }
  fail("unknown learning-rate schedule");
}

Index LearningRateSchedule::decay() const {
  const Index after_warmup = std::max<Index>(total_steps - warmup_steps, 0);
  switch (kind) {
    case ScheduleKind::constant:
      return 0;
    case ScheduleKind::cosine:
      return decay_steps.value_or(after_warmup);
    case ScheduleKind::wsd:
      return decay_steps.value_or(std::min(total_steps / 5, after_warmup));
  }
  fail("unknown learning-rate schedule");
}

double LearningRateSchedule::at(Index step) const {
  require(step >= 1, "learning rate of step {}: steps count from 1", step);
  const Index k = std::min(step, total_steps);
  if (k <= warmup_steps) return peak * static_cast<double>(k) / static_cast<double>(warmup_steps);
  const Index d = decay();
  if (d == 0) return peak;
  if (kind == ScheduleKind::cosine) {
    const double x = std::min(1.0, static_cast<double>(k - warmup_steps) / static_cast<double>(d));
    return minimum + (peak - minimum) * 0.5 * (1 + std::cos(std::numbers::pi * x));
  }
  if (k <= total_steps - d) return peak;
  return minimum + (peak - minimum) * static_cast<double>(total_steps - k) / static_cast<double>(d);
}

void LearningRateSchedule::check() const {
  require<UsageError>(std::isfinite(peak) && peak >= 0, "--learning-rate {}: must be a number from 0 up",
                      peak);
  require<UsageError>(std::isfinite(minimum) && minimum >= 0,
                      "--min-learning-rate {}: must be a number from 0 up", minimum);
  require<UsageError>(minimum <= peak, "--min-learning-rate {} is above --learning-rate {}", minimum, peak);
  require<UsageError>(total_steps >= 1, "--steps {}: must be at least 1", total_steps);
  require<UsageError>(warmup_steps >= 0, "--warmup-steps {}: must be at least 0", warmup_steps);
  require<UsageError>(decay() >= 0, "--decay-steps {}: must be at least 0", decay());
  // The line down must begin at the peak. Cosine may be longer than the run: it is then cut off like the
  // warm-up.
  const bool fits = decay() == 0 || decay() <= total_steps - warmup_steps;
  require<UsageError>(
      kind != ScheduleKind::wsd || fits,
      "--warmup-steps {} and --decay-steps {} do not fit into --steps {}; a decay of at most {} would work",
      warmup_steps, decay(), total_steps, std::max<Index>(total_steps - warmup_steps, 0));
}

}  // namespace escalera
