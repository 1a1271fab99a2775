#include "tests/simulated_cuda/runtime/device.h"

#include <algorithm>
#include <deque>
#include <utility>

#include <simulated_cuda/device_pointer.h>
#include <simulated_cuda/settings.h>

#include "tests/simulated_cuda/runtime/handles.h"

namespace simulated_cuda {
namespace {

thread_local int chosen_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

std::deque<Device>& devices() {
  static std::deque<Device>& instance = *[] {
    auto* all = new std::deque<Device>;
    for (int i = 0; i < max_devices; ++i) all->emplace_back(i);
    return all;
  }();
  return instance;
}

bool idle(const std::shared_ptr<Stream>& stream) {
  return stream->reached(stream->issued());
}

}  // namespace

Device::Device(int ordinal) : ordinal_(ordinal), default_stream_(std::make_shared<Stream>(ordinal, false)) {}

std::shared_ptr<Stream> Device::make_stream(bool waits_for_default) {
  std::lock_guard lock(mutex_);
  // Streams whose handle is gone are kept until their work is done.
  std::erase_if(streams_, [](const std::shared_ptr<Stream>& stream) { return stream.use_count() == 1 && idle(stream); });
  return streams_.emplace_back(std::make_shared<Stream>(ordinal_, waits_for_default));
}

std::vector<StreamPoint> Device::ends() {
  std::lock_guard lock(mutex_);
  std::vector<StreamPoint> result;
  for (const auto& stream : streams_) result.push_back({stream, stream->issued()});
  result.push_back({default_stream_, default_stream_->issued()});
  return result;
}

std::vector<StreamPoint> Device::ends_of_blocking_streams() {
  std::lock_guard lock(mutex_);
  std::vector<StreamPoint> result;
  for (const auto& stream : streams_) {
    if (stream->waits_for_default() && !idle(stream)) result.push_back({stream, stream->issued()});
  }
  return result;
}

std::size_t Device::shared_limit(const void* kernel) {
  std::lock_guard lock(mutex_);
  const auto found = shared_limits_.find(kernel);
  return found == shared_limits_.end() ? shared_without_opt_in : std::max(found->second, shared_without_opt_in);
}

void Device::set_shared_limit(const void* kernel, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  shared_limits_[kernel] = bytes;
}

std::uint64_t Device::next_launch() {
  std::lock_guard lock(mutex_);
  return ++launches_;
}

Device* find_device(int ordinal) {
  if (ordinal < 0 || ordinal >= settings().devices) return nullptr;
  return &devices()[static_cast<std::size_t>(ordinal)];
}

Device* current_device() {
  Device* device = find_device(chosen_device);
  if (!device) note(settings().devices == 0 ? cudaErrorNoDevice : cudaErrorInvalidDevice);
  return device;
}

int current_ordinal() {
  return chosen_device;
}
void set_current_ordinal(int ordinal) {
  chosen_device = ordinal;
}

// Streams made last go first: what they read from others without waiting for them is then not there yet.
void synchronize(Device& device) {
  const std::vector<StreamPoint> ends = device.ends();
  for (auto point = ends.rbegin(); point != ends.rend(); ++point) wait_for(*point);
}

std::vector<StreamPoint> implicit_order(const Stream& stream) {
  Device& device = devices()[static_cast<std::size_t>(stream.device())];
  if (&stream == device.default_stream().get()) return device.ends_of_blocking_streams();
  if (stream.waits_for_default() && !idle(device.default_stream())) {
    return {{device.default_stream(), device.default_stream()->issued()}};
  }
  return {};
}

std::shared_ptr<Stream> stream_of(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    Device* device = current_device();
    if (!device) fail("there is no device, hence no default stream");
    return device->default_stream();
  }
  if (handle == cudaStreamPerThread) fail("cudaStreamPerThread is not simulated");
  if (!live_streams().contains(handle)) fail("stream %p was destroyed, or never was one", static_cast<void*>(handle));
  return handle->stream;
}

cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace simulated_cuda

extern "C" {

cudaError_t cudaGetLastError() {
  return std::exchange(simulated_cuda::last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return simulated_cuda::last_error;
}

}  // extern "C"
