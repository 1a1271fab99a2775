// The learning rate of each step.
// defines: ScheduleKind, LearningRateSchedule
#pragma once

#include <optional>
#include <string_view>

#include "common/core/dtype.h"

namespace escalera {

/// The shape of the curve after the warm-up.
enum class ScheduleKind {
  constant,  ///< stays at the peak
  cosine,    ///< half a cosine from the peak to the minimum
  wsd,       ///< warm-up, stable, decay: stays at the peak, then falls to the minimum in a straight line
};

/// "constant", "cosine" or "wsd", as typed on the command line.
std::string_view to_string(ScheduleKind kind);

/// The learning rate as a function of the step alone, so that a resumed run goes on as if it had never
/// stopped.
///
/// With peak P, minimum M, w warm-up, d decay and n total steps, step k = 1 ... n runs at
///
/// - P k / w while k <= w: the first step learns already, step w is the first at the peak;
/// - constant: P from there on;
/// - cosine: M + (P - M) (1 + cos(pi x)) / 2 with x = min(1, (k - w) / d);
/// - wsd: P while k <= n - d, then M + (P - M) (n - k) / d.
///
/// So the last step runs at M. Example: wsd with P = 1, M = 0, w = 4, d = 4, n = 10 gives
/// 0.25 0.5 0.75 1 1 1 0.75 0.5 0.25 0. A decay of 0 steps is no decay: the rate stays at the peak. A warm-up
/// longer than the run is cut off by its end, before the peak.
struct LearningRateSchedule {
  ScheduleKind kind = ScheduleKind::constant;  ///< `--lr-schedule`
  double peak = 1e-3;                          ///< P, `--learning-rate`
  double minimum = 0;                          ///< M, `--min-learning-rate`
  Index warmup_steps = 0;                      ///< w, `--warmup-steps`
  Index total_steps = 1;                       ///< n, `--steps`, wherever `--stop-after` ends the run
  /// d, `--decay-steps`. Not given: cosine decays from the warm-up to the last step, wsd over the last fifth
  /// of the run (what the warm-up leaves of it).
  std::optional<Index> decay_steps;

  /// The d that the formulas use; 0 for constant.
  Index decay() const;
  /// The rate of step `step` >= 1; after the last step it stays as it was there.
  double at(Index step) const;
  /// Throws UsageError, naming options and numbers, for numbers below zero or not finite, a minimum above the
  /// peak, or a warm-up and decay of wsd that do not fit into the steps together.
  void check() const;
};

}  // namespace escalera
