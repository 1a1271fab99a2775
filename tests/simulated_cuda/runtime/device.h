// The simulated GPUs, and what a handle of the runtime API means. All of it belongs to devices, nothing to host threads: only
// the choice of the current device and the last error are a thread's own.
// defines: Device, device(), current_device(), the handles CUstream_st and CUevent_st, stream_of(), event_of(), record()
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda_runtime.h>

#include "tests/simulated_cuda/runtime/stream.h"

namespace simulated_cuda {

// The simulated GPU is like an A100: whoever asks for more than sm_80 offers is told.
inline constexpr int multiprocessors = 8;
inline constexpr std::size_t shared_without_opt_in = 48 << 10;
inline constexpr std::size_t shared_per_block = 163 << 10;
inline constexpr std::size_t shared_per_multiprocessor = 164 << 10;

class Device {
 public:
  explicit Device(int ordinal);

  int ordinal() const { return ordinal_; }
  const std::shared_ptr<Stream>& default_stream() const { return default_stream_; }
  std::shared_ptr<Stream> make_stream(bool waits_for_default);
  /// The end of everything that was queued so far.
  std::vector<StreamPoint> ends();
  /// The ends of the streams that the legacy default stream waits for.
  std::vector<StreamPoint> ends_of_blocking_streams();

  /// Dynamic shared memory that `kernel` may use on this device.
  std::size_t shared_limit(const void* kernel);
  void set_shared_limit(const void* kernel, std::size_t bytes);

  /// Counts up with every launch, so that each has its own shuffled order.
  std::uint64_t next_launch();

 private:
  const int ordinal_;
  const std::shared_ptr<Stream> default_stream_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Stream>> streams_;
  std::map<const void*, std::size_t> shared_limits_;
  std::uint64_t launches_ = 0;
};

/// Null if there is no such device.
Device* find_device(int ordinal);
/// The calling thread's; null, after noting the error, if no device is visible.
Device* current_device();
int current_ordinal();
void set_current_ordinal(int ordinal);

/// Waits for all of a device.
void synchronize(Device& device);
/// What a task of this stream comes after, though nobody said so.
std::vector<StreamPoint> implicit_order(const Stream& stream);

/// The stream of a handle; null means the current device's default stream. A handle that is none is reported.
std::shared_ptr<Stream> stream_of(cudaStream_t handle);

/// Notes an error for cudaGetLastError() and passes it on.
cudaError_t note(cudaError_t error);

}  // namespace simulated_cuda

struct CUstream_st {
  std::shared_ptr<simulated_cuda::Stream> stream;
  unsigned flags = 0;
  int priority = 0;
};
