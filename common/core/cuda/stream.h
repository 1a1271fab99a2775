// CUDA streams and events that clean up after themselves.
// defines: Stream, Event
#pragma once

#include <utility>

#include "common/core/cuda/cuda_check.h"

namespace escalera::cuda {

/// Owns a CUDA stream that does not wait for the legacy default stream.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Owns a CUDA event: a point in a stream that other streams and the host can wait for.
class Event {
 public:
  /// With `timing`, cudaEventElapsedTime works on it.
  explicit Event(bool timing = false);
  ~Event();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }
  /// Marks the present end of `stream`.
  void record(cudaStream_t stream) { CUDA_CHECK(cudaEventRecord(event_, stream)); }
  /// Whatever is given to `stream` from now on waits for the mark; the host does not.
  void order(cudaStream_t stream) const { CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0)); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace escalera::cuda
