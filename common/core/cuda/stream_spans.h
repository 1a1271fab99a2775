// When work on CUDA streams really ran, for the trace.
// defines: StreamSpans
#pragma once

#include <list>
#include <memory>
#include <string_view>
#include <vector>

#include "common/core/cuda/stream.h"
#include "common/core/trace.h"

namespace escalera::cuda {

/// Spans between events on streams. They reach the trace when collect() finds that their events have happened, where nobody
/// waits, or when the trace is taken.
class StreamSpans {
 public:
  StreamSpans() = default;
  ~StreamSpans();
  StreamSpans(const StreamSpans&) = delete;
  StreamSpans& operator=(const StreamSpans&) = delete;

  /// A span that is being recorded; null for none.
  using Span = std::shared_ptr<struct StreamSpan>;

  /// A span in row `row`, if `trace` is on. It covers all parts that part() records. One trace for all spans, which outlives
  /// this object.
  Span begin(Trace* trace, std::string_view row, std::string_view name, std::int64_t bytes);
  /// Runs `body`, which puts work on `stream`, as a part of `span`.
  template <class Body>
  void part(const Span& span, cudaStream_t stream, Body&& body) {
    mark(span, stream);
    body();
    mark(span, stream);
  }
  /// One end of a part: the present end of `stream`.
  void mark(const Span& span, cudaStream_t stream);
  /// The parts of `span` are complete.
  void end(Span span);

  /// Adds the spans that have happened to their trace. With `all` it waits for those that have not.
  void collect(bool all = false);

 private:
  /// A point in time known both to the host and to the device.
  struct Base {
    Event event{true};
    std::int64_t time = 0;
  };
  std::shared_ptr<Base> base();

  Trace* trace_ = nullptr;  // where hand_in_ is registered
  Trace::Source hand_in_;
  std::shared_ptr<Base> base_;
  std::unique_ptr<Stream> clock_;  // idle, but for the events of bases
  std::list<Span> ended_;
  friend struct StreamSpan;
};

}  // namespace escalera::cuda
