#include "common/core/cuda/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace escalera::cuda {
namespace {

constexpr Index smallest_upload_half = Index{1} << 18;  // values: 1 MB
constexpr std::size_t smallest_slab = std::size_t{64} << 20;

int checked(int ordinal) {
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  require<UsageError>(ordinal >= 0 && ordinal < devices, "there is no CUDA device {}: {} device{} visible", ordinal, devices,
                      devices == 1 ? " is" : "s are");
  CUDA_CHECK(cudaSetDevice(ordinal));
  return ordinal;
}

std::byte* device_slab(std::size_t bytes) {
  void* slab = nullptr;
  if (const cudaError_t code = cudaMalloc(&slab, bytes); code != cudaSuccess) {
    cudaGetLastError();  // takes the error off the record: the caller may do with less
    return nullptr;
  }
  return static_cast<std::byte*>(slab);
}

}  // namespace

void throw_cuda_error(cudaError_t code, const char* expression, const char* file, int line) {
  int ordinal = -1;
  cudaGetDevice(&ordinal);
  fail("CUDA device {}: {} ({}), from {} at {}:{}", ordinal, cudaGetErrorString(code), cudaGetErrorName(code), expression, file,
       line);
}

CudaDevice::CudaDevice(int ordinal)
    : ordinal_(checked(ordinal)),
      name_(fmt::format("cuda:{}", ordinal)),
      arena_({device_slab, [](std::byte* slab, std::size_t) { cudaFree(slab); }, smallest_slab, "the GPU"}) {}

CudaDevice::~CudaDevice() {
  cudaSetDevice(ordinal_);
  cudaStreamSynchronize(stream());
  for (UploadHalf& half : halves_) free(half);
}

std::string CudaDevice::description() const {
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, ordinal_));
  return fmt::format("{}, {} SMs, sm_{}{}", properties.name, properties.multiProcessorCount, properties.major,
                     properties.minor);
}

void CudaDevice::zero(void* data, Index bytes) { fill_bytes(static_cast<std::byte*>(data), bytes, 0); }

void CudaDevice::copy(void* destination, const void* source, Index bytes) {
  if (bytes == 0 || destination == source) return;
  CUDA_CHECK(cudaMemcpyAsync(destination, source, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream()));
}

// Large and rare (weights), so it simply waits; what a step needs goes through upload().
void CudaDevice::copy_from_host(void* destination, const void* source, Index bytes) {
  if (bytes == 0) return;
  CUDA_CHECK(cudaMemcpyAsync(destination, source, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream()));
  synchronize();
}

void CudaDevice::copy_to_host(void* destination, const void* source, Index bytes) {
  if (bytes == 0) return;
  // First all that comes before: a copy to pageable memory would block inside the runtime, where no monitor is heard.
  synchronize();
  CUDA_CHECK(cudaMemcpyAsync(destination, source, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream()));
  CUDA_CHECK(cudaStreamSynchronize(stream()));
}

void CudaDevice::synchronize() {
  idle_.record(stream());
  wait_for(idle_);
}

std::shared_ptr<void> CudaDevice::span(Trace* trace, std::string_view name) {
  const StreamSpans::Span span = spans_.begin(trace, "compute", name, 0);
  if (!span) return nullptr;
  spans_.mark(span, stream());
  return {span.get(), [this, span](void*) {
            try {
              spans_.mark(span, stream());
              spans_.end(span);
              spans_.collect();
            } catch (const Error&) {  // may be on the way up from the very failure; the next call on the stream says it again
            }
          }};
}

void CudaDevice::wait_for(const Event& event) {
  using Clock = std::chrono::steady_clock;
  if (monitors_.empty()) {
    CUDA_CHECK(cudaEventSynchronize(event.get()));
    return;
  }
  Clock::time_point next_check = Clock::now() + std::chrono::milliseconds(10);
  for (;;) {
    const cudaError_t code = cudaEventQuery(event.get());
    const bool happened = code == cudaSuccess;
    if (!happened && code != cudaErrorNotReady) CUDA_CHECK(code);
    if (happened || Clock::now() >= next_check) {
      for (const auto& monitor : monitors_) monitor();
      if (happened) return;
      next_check = Clock::now() + std::chrono::milliseconds(10);
    }
    std::this_thread::yield();
  }
}

CudaDevice::Monitor CudaDevice::add_monitor(std::function<void()> monitor) {
  return monitors_.insert(monitors_.end(), std::move(monitor));
}

void CudaDevice::remove_monitor(Monitor monitor) { monitors_.erase(monitor); }

const std::int32_t* CudaDevice::upload(std::span<const std::int32_t> values) {
  const Index count = static_cast<Index>(values.size());
  if (count == 0) return nullptr;
  if (halves_[half_].used + count > halves_[half_].capacity) {
    // On to the other half, once the copies that were taken from it are done: half a ring ago, so this hardly ever waits.
    halves_[half_].copied.record(stream());
    half_ = 1 - half_;
    CUDA_CHECK(cudaEventSynchronize(halves_[half_].copied.get()));
    halves_[half_].used = 0;
    if (count > halves_[half_].capacity) grow(halves_[half_], count);
  }
  UploadHalf& half = halves_[half_];
  std::int32_t* host = half.host + half.used;
  std::int32_t* device = half.device + half.used;
  half.used += (count + 63) / 64 * 64;  // each copy starts a cache line
  std::memcpy(host, values.data(), values.size_bytes());
  CUDA_CHECK(cudaMemcpyAsync(device, host, values.size_bytes(), cudaMemcpyHostToDevice, stream()));
  return device;
}

void CudaDevice::grow(UploadHalf& half, Index values) {
  CUDA_CHECK(cudaStreamSynchronize(stream()));  // kernels may still read the old memory
  free(half);
  const Index capacity = (std::max(2 * values, smallest_upload_half) + 63) / 64 * 64;
  const std::size_t bytes = static_cast<std::size_t>(capacity) * sizeof(std::int32_t);
  CUDA_CHECK(cudaMallocHost(reinterpret_cast<void**>(&half.host), bytes));
  CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&half.device), bytes));
  half.capacity = capacity;
}

void CudaDevice::free(UploadHalf& half) noexcept {
  cudaFreeHost(half.host);
  cudaFree(half.device);
  half.host = half.device = nullptr;
  half.capacity = half.used = 0;
}

std::byte* CudaDevice::allocate(Index bytes) { return arena_.allocate(static_cast<std::size_t>(bytes)); }

void CudaDevice::release(std::byte* block, Index bytes) noexcept { arena_.release(block, static_cast<std::size_t>(bytes)); }

void CudaDevice::fill_bytes(std::byte* block, Index bytes, unsigned char value) {
  if (bytes > 0) CUDA_CHECK(cudaMemsetAsync(block, value, static_cast<std::size_t>(bytes), stream()));
}

}  // namespace escalera::cuda
