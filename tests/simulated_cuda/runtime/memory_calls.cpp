// The runtime API: memory, copies and fills.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include <simulated_cuda/device_pointer.h>
#include <simulated_cuda/settings.h>

#include "tests/simulated_cuda/runtime/counters.h"
#include "tests/simulated_cuda/runtime/device.h"
#include "tests/simulated_cuda/runtime/memory.h"

using namespace simulated_cuda;

namespace {

/// One end of a copy.
enum class Place { device, pinned, pageable };

/// Where `pointer` points, and whether `bytes` from there lie in one live allocation.
struct End {
  Place place = Place::pageable;
  bool valid = true;
};

End end_of(const void* pointer, std::size_t bytes) {
  const std::uintptr_t address = bits(untagged(pointer));
  const auto allocation = memory_map().find(address);
  const bool inside = allocation && allocation->live && address + bytes <= allocation->address + allocation->bytes;
  if (is_tagged(pointer)) {
    if (allocation && !allocation->live) fail("a copy or fill uses device memory %p that was freed", pointer);
    return {Place::device, inside && allocation->kind == MemoryKind::device};
  }
  if (allocation && allocation->live && allocation->kind == MemoryKind::pinned) return {Place::pinned, inside};
  return {Place::pageable, true};
}

bool fits(cudaMemcpyKind kind, const End& to, const End& from) {
  if (!to.valid || !from.valid) return false;
  const bool to_device = to.place == Place::device, from_device = from.place == Place::device;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

/// Rows of bytes; a plain copy has one row.
struct Rows {
  std::size_t to_pitch, from_pitch, width, height;
};

void move_rows(void* to, const void* from, const Rows& rows) {
  for (std::size_t row = 0; row < rows.height; ++row) {
    std::memmove(static_cast<char*>(to) + row * rows.to_pitch, static_cast<const char*>(from) + row * rows.from_pitch,
                 rows.width);
  }
}

cudaError_t copy(void* to, const void* from, const Rows& rows, cudaMemcpyKind kind, cudaStream_t handle, bool blocking) {
  if (rows.width == 0 || rows.height == 0) return cudaSuccess;
  if (rows.height > 1 && (rows.width > rows.to_pitch || rows.width > rows.from_pitch))
    return note(cudaErrorInvalidPitchValue);
  const End to_end = end_of(to, (rows.height - 1) * rows.to_pitch + rows.width);
  const End from_end = end_of(from, (rows.height - 1) * rows.from_pitch + rows.width);
  if (!fits(kind, to_end, from_end)) return note(cudaErrorInvalidValue);
  const std::shared_ptr<Stream> stream = stream_of(handle);
  StreamPoint done;
  if (from_end.place == Place::pageable && to_end.place == Place::device) {
    // Staged: the source may change after the call. Pinned memory is read only when the stream comes to it.
    const auto staged = std::make_shared<std::vector<char>>(rows.width * rows.height);
    move_rows(staged->data(), from, {rows.width, rows.from_pitch, rows.width, rows.height});
    done = enqueue(stream, [=] {
      move_rows(untagged(to), staged->data(), {rows.to_pitch, rows.width, rows.width, rows.height});
    });
  } else {
    done = enqueue(stream, [=] { move_rows(untagged(to), untagged(from), rows); });
  }
  const bool within_devices = to_end.place == Place::device && from_end.place == Place::device;
  // What pageable memory gets is there on return, in the calls named Async too; copies within devices never wait.
  if ((blocking && !within_devices) || (to_end.place == Place::pageable)) wait_for(done);
  return cudaSuccess;
}

cudaError_t fill(void* to, int value, std::size_t pitch, std::size_t width, std::size_t height, cudaStream_t handle) {
  if (width == 0 || height == 0) return cudaSuccess;
  const End end = end_of(to, (height - 1) * pitch + width);
  if (end.place == Place::pageable || !end.valid) return note(cudaErrorInvalidValue);
  enqueue(stream_of(handle), [=] {
    for (std::size_t row = 0; row < height; ++row) std::memset(static_cast<char*>(untagged(to)) + row * pitch, value, width);
  });
  return cudaSuccess;
}

}  // namespace

extern "C" {

// ---- Allocation ----

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  const Device* device = current_device();
  if (!device) return cudaErrorNoDevice;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  count(counters().allocations);
  void* address = memory_map().allocate_device(device->ordinal(), bytes);
  if (!address) return note(cudaErrorMemoryAllocation);
  *pointer = tagged(address, device->ordinal());
  return cudaSuccess;
}

// Waits for the device that owns the memory, as the real one does.
cudaError_t cudaFree(void* pointer) {
  if (!pointer) return cudaSuccess;
  if (!is_tagged(pointer)) return note(cudaErrorInvalidValue);
  const void* address = untagged(pointer);
  const auto allocation = memory_map().find(bits(address));
  if (allocation && !allocation->live) fail("cudaFree: %p was freed before", pointer);
  Device* device = find_device(device_of(pointer));
  if (!allocation || allocation->address != bits(address) || !device) return note(cudaErrorInvalidValue);
  synchronize(*device);
  memory_map().free(address, MemoryKind::device);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = memory_map().allocate_pinned(bytes);
  return *pointer ? cudaSuccess : note(cudaErrorMemoryAllocation);
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  return cudaHostAlloc(pointer, bytes, 0);
}

cudaError_t cudaFreeHost(void* pointer) {
  if (!pointer) return cudaSuccess;
  if (Device* device = current_device()) synchronize(*device);
  return memory_map().free(pointer, MemoryKind::pinned) ? cudaSuccess : note(cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned) {
  return memory_map().register_host(pointer, bytes) ? cudaSuccess : note(cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void* pointer) {
  if (Device* device = current_device()) synchronize(*device);
  return memory_map().unregister_host(pointer) ? cudaSuccess : note(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  const Device* device = current_device();
  if (!device) return cudaErrorNoDevice;
  *total = settings().device_memory;
  *available = *total - std::min(*total, memory_map().used(device->ordinal()));
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = -2;
  const auto allocation = memory_map().find(bits(untagged(pointer)));
  if (!allocation || !allocation->live) return cudaSuccess;
  if (is_tagged(pointer)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = device_of(pointer);
    attributes->devicePointer = const_cast<void*>(pointer);
  } else if (allocation->kind == MemoryKind::pinned) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = current_ordinal();
    attributes->hostPointer = const_cast<void*>(pointer);
  }
  return cudaSuccess;
}

// ---- Copies and fills ----

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy(to, from, {bytes, bytes, bytes, 1}, kind, stream, false);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return copy(to, from, {bytes, bytes, bytes, 1}, kind, nullptr, true);
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                              std::size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy(to, from, {to_pitch, from_pitch, width, height}, kind, stream, false);
}

cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                         std::size_t height, cudaMemcpyKind kind) {
  return copy(to, from, {to_pitch, from_pitch, width, height}, kind, nullptr, true);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, cudaStream_t stream) {
  return copy(to, from, {bytes, bytes, bytes, 1}, cudaMemcpyDeviceToDevice, stream, false);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return fill(to, value, bytes, bytes, 1, stream);
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return fill(to, value, bytes, bytes, 1, nullptr);
}
cudaError_t cudaMemset2DAsync(void* to, std::size_t pitch, int value, std::size_t width, std::size_t height,
                              cudaStream_t stream) {
  return fill(to, value, pitch, width, height, stream);
}

}  // extern "C"
