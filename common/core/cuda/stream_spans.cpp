#include "common/core/cuda/stream_spans.h"

#include <algorithm>

namespace escalera::cuda {

struct StreamSpan {
  TraceEvent event;
  std::vector<Event> marks;  // begin and end of each part
  std::shared_ptr<StreamSpans::Base> base;

  bool happened() const {
    return std::all_of(marks.begin(), marks.end(), [](const Event& mark) {
      const cudaError_t code = cudaEventQuery(mark.get());
      if (code != cudaErrorNotReady) CUDA_CHECK(code);
      return code == cudaSuccess;
    });
  }
};

StreamSpans::~StreamSpans() {
  if (trace_) trace_->remove_source(hand_in_);
}

// Differences of events come as a float of milliseconds, and the device's clock need not run exactly like the host's: a
// base serves for a second.
std::shared_ptr<StreamSpans::Base> StreamSpans::base() {
  constexpr std::int64_t second = 1'000'000'000;
  if (!base_ || Trace::now() - base_->time > second) {
    if (!clock_) clock_ = std::make_unique<Stream>();
    base_ = std::make_shared<Base>();
    base_->time = Trace::now();  // before: spans may seem a few microseconds early, but none ends in the future
    base_->event.record(clock_->get());
    CUDA_CHECK(cudaEventSynchronize(base_->event.get()));
  }
  return base_;
}

StreamSpans::Span StreamSpans::begin(Trace* trace, std::string_view row, std::string_view name, std::int64_t bytes) {
  if (!trace || !trace->enabled()) return nullptr;
  if (!trace_) {
    trace_ = trace;
    hand_in_ = trace->add_source([this] { collect(true); });
  }
  auto span = std::make_shared<StreamSpan>();
  span->event = {std::string(name), std::string(row), 0, 0, bytes};
  span->base = base();
  return span;
}

void StreamSpans::mark(const Span& span, cudaStream_t stream) {
  if (span) span->marks.emplace_back(true).record(stream);
}

void StreamSpans::end(Span span) {
  if (span && !span->marks.empty()) ended_.push_back(std::move(span));
}

void StreamSpans::collect(bool all) {
  for (auto place = ended_.begin(); place != ended_.end();) {
    StreamSpan& span = **place;
    if (all) {
      for (const Event& mark : span.marks) CUDA_CHECK(cudaEventSynchronize(mark.get()));
    } else if (!span.happened()) {
      ++place;
      continue;
    }
    std::vector<std::int64_t> times;
    for (const Event& mark : span.marks) {
      float milliseconds = 0;
      CUDA_CHECK(cudaEventElapsedTime(&milliseconds, span.base->event.get(), mark.get()));
      times.push_back(span.base->time + static_cast<std::int64_t>(1e6 * static_cast<double>(milliseconds)));
    }
    const auto [first, last] = std::minmax_element(times.begin(), times.end());
    span.event.begin = *first;
    span.event.end = *last;
    trace_->add(span.event);
    place = ended_.erase(place);
  }
}

}  // namespace escalera::cuda
