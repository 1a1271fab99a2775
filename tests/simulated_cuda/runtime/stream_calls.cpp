// The runtime API: streams and events.
#include <chrono>
#include <mutex>
#include <optional>

#include "tests/simulated_cuda/runtime/device.h"
#include "tests/simulated_cuda/runtime/handles.h"

namespace simulated_cuda {

using Clock = std::chrono::steady_clock;

/// One cudaEventRecord. Waits refer to it, so recording the event again does not change what they wait for.
struct Record {
  StreamPoint point;
  std::mutex mutex;
  std::optional<Clock::time_point> time;
};

LiveHandles<cudaStream_t>& live_streams() {
  static auto& instance = *new LiveHandles<cudaStream_t>;
  return instance;
}

LiveHandles<cudaEvent_t>& live_events() {
  static auto& instance = *new LiveHandles<cudaEvent_t>;
  return instance;
}

}  // namespace simulated_cuda

using namespace simulated_cuda;

struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  std::mutex mutex;
  std::shared_ptr<Record> record;  // the last one
};

namespace {

/// What the event was last recorded as; null if never.
std::shared_ptr<Record> record_of(cudaEvent_t event) {
  if (!live_events().contains(event)) fail("event %p was destroyed, or never was one", static_cast<void*>(event));
  std::lock_guard lock(event->mutex);
  return event->record;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  Device* device = current_device();
  if (!device) return cudaErrorNoDevice;
  if (!stream || (flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) != 0) return note(cudaErrorInvalidValue);
  *stream = new CUstream_st{device->make_stream((flags & cudaStreamNonBlocking) == 0), flags, priority};
  live_streams().add(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

// As on a GPU it returns at once; what is queued will still be done.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!live_streams().remove(stream))
    fail("cudaStreamDestroy: %p was destroyed, or never was a stream", static_cast<void*>(stream));
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const std::shared_ptr<Stream> stream = stream_of(handle);
  for (const StreamPoint& point : implicit_order(*stream)) wait_for(point);
  wait_for({stream, stream->issued()});
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const std::shared_ptr<Stream> stream = stream_of(handle);
  return advance_a_little({stream, stream->issued()}) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  stream_of(stream);
  *flags = stream ? stream->flags : 0;
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  stream_of(stream);
  *priority = stream ? stream->priority : 0;
  return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  *device = stream_of(stream)->device();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  enqueue(stream_of(stream), [=] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const Device* device = current_device();
  if (!device) return cudaErrorNoDevice;
  *event = new CUevent_st;
  (*event)->device = device->ordinal();
  (*event)->flags = flags;
  live_events().add(*event);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!live_events().remove(event))
    fail("cudaEventDestroy: %p was destroyed, or never was an event", static_cast<void*>(event));
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  record_of(event);
  const std::shared_ptr<Stream> stream = stream_of(handle);
  if (stream->device() != event->device) {
    fail("cudaEventRecord: an event of device %d cannot be recorded in a stream of device %d", event->device,
         stream->device());
  }
  const auto record = std::make_shared<Record>();
  record->point = enqueue(stream, [record] {
    std::lock_guard lock(record->mutex);
    record->time = Clock::now();
  });
  std::lock_guard lock(event->mutex);
  event->record = record;
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::shared_ptr<Record> record = record_of(event);
  // No error is noted: "not ready" is an answer.
  return !record || advance_a_little(record->point) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const std::shared_ptr<Record> record = record_of(event)) wait_for(record->point);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const std::shared_ptr<Record> records[2] = {record_of(start), record_of(end)};
  if (((start->flags | end->flags) & cudaEventDisableTiming) || !records[0] || !records[1]) {
    return note(cudaErrorInvalidResourceHandle);
  }
  Clock::time_point times[2];
  for (int i = 0; i < 2; ++i) {
    std::lock_guard lock(records[i]->mutex);
    if (!records[i]->time) return note(cudaErrorNotReady);
    times[i] = *records[i]->time;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(times[1] - times[0]).count();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  const std::shared_ptr<Stream> stream = stream_of(handle);
  if (const std::shared_ptr<Record> record = record_of(event)) enqueue_wait(stream, record->point);
  return cudaSuccess;
}

}  // extern "C"
