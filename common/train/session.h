// What every trainer prints and watches, so that its own file can keep the training loop in plain view.
// defines: Session, StepResult, check_finite()
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/comm/communicator.h"
#include "common/train/formulas.h"
#include "common/train/options.h"
#include "common/train/signals.h"

namespace escalera {

/// The numbers of one finished step, the same on all ranks.
struct StepResult {
  Index step = 0;              ///< 1 is the first
  double loss = 0.0;           ///< cross-entropy per unmasked target of the global batch
  double gradient_norm = 0.0;  ///< before clipping
  double learning_rate = 0.0;  ///< used by this step
};

/// A name and a value for the table at the start.
using ConfigurationRow = std::pair<std::string, std::string>;

/// Throws unless `global` is finite. `global` (a loss or a norm) is the same on all ranks; `local` is this
/// rank's own share of it before any reduction, so that the rank where the trouble began can be named: that
/// rank throws Error, the others PeerError. Where no share is at fault (the sum itself overflowed) rank 0
/// speaks. Communicates only in case of trouble.
void check_finite(Communicator& world, Index step, std::string_view what, double global, double local);

/// Log, metrics, trace and signals of one run. Construction, start(), running(), end_step(), validation() and
/// finish() are collective: every rank calls them in the same order.
///
///     Session session(world, options, device, trace);
///     session.watch(mesh.dp());
///     session.start({{"data parallel", "4 ranks, overlapped"}});
///     for (Index step = 1; session.running(step); ++step) {
///       ...
///       check_finite(world, step, "loss", loss, local_loss);
///       session.end_step({step, loss, norm, rate});
///     }
///     session.finish();
class Session {
 public:
  /// Opens --metrics, switches `trace` on if --trace was given, takes over the signals of SignalWatch. `options` are
  /// validated; all arguments outlive the session.
  Session(Communicator& world, const TrainOptions& options, const Device& device, Trace& trace);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Counts this communicator's traffic too (the world is counted already).
  void watch(const Communicator& group);

  /// Prints the configuration, with the chapter's own rows and those of the Placement at its end, and starts the clock.
  void start(const std::vector<ConfigurationRow>& chapter = {}, const std::vector<ConfigurationRow>& placement = {});

  /// Whether step number `step` is to be run: not after the last one, and not after a signal.
  bool running(Index step) const;

  /// Writes the log line and the metrics of a step. Learns whether any rank was told to stop.
  void end_step(const StepResult& result);

  /// Writes the line of a validation. `tokens` is the number of targets that `loss` is a mean of.
  void validation(Index step, double loss, Index tokens);

  /// Prints `text` on rank 0, out of the way of the progress line.
  void print(const std::string& text);

  /// Ends the log with the time of the run and how much of it was waiting for communication, and writes the trace. Call before
  /// printing the report.
  void finish();

  /// Steps that this run has done so far.
  Index steps_done() const { return steps_done_; }
  /// true once the ranks have agreed to stop because of a signal.
  bool interrupted() const { return interrupted_; }
  /// The communicators whose traffic is counted: the world and the watched ones.
  const std::vector<const Communicator*>& groups() const { return groups_; }
  /// Mean over all steps but the first (which warms up), of the whole world.
  double tokens_per_second() const;

 private:
  using Clock = std::chrono::steady_clock;

  double seconds_waited() const;
  void write_metrics(const StepResult& result, double seconds, double tokens_per_second);
  void write_line(const std::string& line);
  void draw_progress(Index step);
  void clear_progress();

  Communicator& world_;
  const TrainOptions& options_;
  const Device& device_;
  Trace& trace_;
  SignalWatch signals_;
  std::vector<const Communicator*> groups_;
  std::FILE* metrics_ = nullptr;  // on rank 0, if asked for
  bool terminal_ = false;         // rank 0 writes to a terminal: progress may be drawn
  bool progress_drawn_ = false;
  bool interrupted_ = false;

  Clock::time_point start_, step_start_;
  Index last_step_ = 0;                              // done so far
  Index steps_done_ = 0, steps_since_log_ = 0;       // in this run
  double seconds_done_ = 0.0, first_seconds_ = 0.0;  // spent in steps; of that in the first one
  double seconds_since_log_ = 0.0;
  double largest_memory_ = 0.0;  // peak bytes of the rank that has most
  std::vector<Index> previous_traffic_;
  // Seconds, see Communicator::seconds_waited: when the step began, in the last step, in all steps. Validations do not count.
  double waited_before_ = 0.0, waited_in_step_ = 0.0, waited_ = 0.0;
};

/// One line of the log: "step 12 | loss 2.3456 | grad norm 1.234 | ...". `mfu` and `mfu_causal` below 0 mean
/// unknown.
std::string log_line(const StepResult& result, double tokens_per_second, int ranks, double mfu,
                     double mfu_causal, double memory_bytes);

}  // namespace escalera
