// What a rank did when: named spans on named streams, for the Chrome/Perfetto trace and for tests that check overlap.
// defines: Trace, TraceSpan, TraceEvent
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace escalera {

/// One finished span. Times are nanoseconds of the steady clock, which all processes of a host share.
struct TraceEvent {
  std::string name;        ///< "backward model.layers.3", "all_reduce", "wait all_reduce"
  std::string stream;      ///< the row it is drawn in: "compute", "dp" (a communicator's name)
  std::int64_t begin = 0;  ///< as Trace::now()
  std::int64_t end = 0;    ///< as Trace::now()
  std::int64_t bytes = 0;  ///< payload of a communication, else 0
};

/// Collects the spans of one rank. Thread-safe; costs nothing while off.
class Trace {
 public:
  /// Whether TraceSpans record. Switch it only while no other thread of the rank records.
  /// @{
  bool enabled() const { return enabled_; }
  void enable(bool on) { enabled_ = on; }
  /// @}
  /// Adds a finished span, whether or not the trace is on.
  void add(TraceEvent event);
  /// What was collected so far, in order of completion; the collection starts anew. Sources add what they still have first.
  std::vector<TraceEvent> take();

  /// take() calls `source` first: whoever learns late when its spans took place, as from a GPU, adds them then. To be added and
  /// removed on the thread that takes, and removed before what it uses is gone.
  /// @{
  using Source = std::list<std::function<void()>>::iterator;
  Source add_source(std::function<void()> source) { return sources_.insert(sources_.end(), std::move(source)); }
  void remove_source(Source source) { sources_.erase(source); }
  /// @}

  /// Nanoseconds of the steady clock.
  static std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  bool enabled_ = false;
  std::mutex mutex_;
  std::vector<TraceEvent> events_;
  std::list<std::function<void()>> sources_;
};

/// Adds the span from its construction to its destruction. `trace` may be null.
class TraceSpan {
 public:
  /// Begins a span in row `stream`. Nothing is recorded if the trace is off now.
  TraceSpan(Trace* trace, std::string_view stream, std::string_view name, std::int64_t bytes = 0)
      : trace_(trace && trace->enabled() ? trace : nullptr) {
    if (trace_) event_ = {std::string(name), std::string(stream), Trace::now(), 0, bytes};
  }
  ~TraceSpan() {
    if (!trace_) return;
    event_.end = Trace::now();
    trace_->add(std::move(event_));
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* trace_;
  TraceEvent event_;
};

}  // namespace escalera
