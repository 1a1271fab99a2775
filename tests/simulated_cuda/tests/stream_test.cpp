// Streams, events and copies: what waits for what, when host memory is read, and what a forgotten wait does on lazy streams.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "tests/simulated_cuda/tests/sample_kernels.h"
#include "tests/simulated_cuda/tests/support.h"

namespace simulated_cuda {
namespace {

struct Stream {
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&handle, flags), cudaSuccess);
  }
  ~Stream() { cudaStreamDestroy(handle); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return handle; }
  cudaStream_t handle = nullptr;
};

struct Event {
  explicit Event(unsigned flags = cudaEventDefault) { EXPECT_EQ(cudaEventCreateWithFlags(&handle, flags), cudaSuccess); }
  ~Event() { cudaEventDestroy(handle); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return handle; }
  cudaEvent_t handle = nullptr;
};

template <class T>
struct Pinned {
  explicit Pinned(std::size_t size) {
    EXPECT_EQ(cudaMallocHost(reinterpret_cast<void**>(&data), size * sizeof(T)), cudaSuccess);
  }
  ~Pinned() { cudaFreeHost(data); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  T* data = nullptr;
};

/// Each test on eager and on lazy streams; what is right has to work on both.
class Streams : public testing::TestWithParam<bool> {
 protected:
  Streams() { settings_->lazy_streams = GetParam(); }
  bool lazy() const { return GetParam(); }
  ScopedSettings settings_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, Streams, testing::Bool(),
                         [](const auto& parameters) { return std::string(parameters.param ? "lazy" : "eager"); });

const std::vector<float> ones(64, 1.0f), twos(64, 2.0f), fours(64, 4.0f);

/// x doubled on one stream, and doubled again on the other.
std::vector<float> double_twice(bool wait) {
  DeviceArray<float> x(ones), y(64), z(64);
  Stream producer, consumer;
  Event ready(cudaEventDisableTiming);
  EXPECT_EQ(sample::scale(y.data(), x.data(), 2.0f, 64, producer), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(ready, producer), cudaSuccess);
  if (wait) {
    EXPECT_EQ(cudaStreamWaitEvent(consumer, ready, 0), cudaSuccess);
  }
  EXPECT_EQ(sample::scale(z.data(), y.data(), 2.0f, 64, consumer), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(consumer), cudaSuccess);
  std::vector<float> result = z.values_now();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return result;
}

TEST_P(Streams, WaitForEventsOfOthers) {
  EXPECT_EQ(double_twice(true), fours);
}

TEST_P(Streams, ForgottenWaitsShowWhenLazy) {
  const std::vector<float> result = double_twice(false);
  if (lazy()) {
    for (const float value : result) EXPECT_TRUE(std::isnan(value));
  } else {
    EXPECT_EQ(result, fours);  // luck, as on a GPU that has little to do
  }
}

TEST_P(Streams, SynchronizingTheDeviceDoesNotReplaceAWait) {
  DeviceArray<float> x(ones), y(64), z(64);
  Stream producer, consumer;
  CUDA_OK(sample::scale(y.data(), x.data(), 2.0f, 64, producer));
  CUDA_OK(sample::scale(z.data(), y.data(), 2.0f, 64, consumer));
  const std::vector<float> result = z.values();
  EXPECT_EQ(std::isnan(result[0]), lazy());
}

TEST_P(Streams, WaitsOnlyForThePointThatWasRecorded) {
  DeviceArray<float> x(ones), y(64), later(64);
  Stream first, second;
  Event recorded;
  CUDA_OK(sample::scale(y.data(), x.data(), 2.0f, 64, first));
  CUDA_OK(cudaEventRecord(recorded, first));
  CUDA_OK(sample::scale(later.data(), x.data(), 2.0f, 64, first));
  CUDA_OK(cudaStreamWaitEvent(second, recorded, 0));
  CUDA_OK(cudaStreamSynchronize(second));
  EXPECT_EQ(y.values_now(), twos);
  EXPECT_EQ(std::isnan(later.values_now()[0]), lazy());
  CUDA_OK(cudaStreamSynchronize(first));
  EXPECT_EQ(later.values_now(), twos);
}

TEST_P(Streams, RecordingAgainDoesNotMoveEarlierWaits) {
  DeviceArray<float> x(ones), y(64), later(64);
  Stream first, second;
  Event event;
  CUDA_OK(sample::scale(y.data(), x.data(), 2.0f, 64, first));
  CUDA_OK(cudaEventRecord(event, first));
  CUDA_OK(cudaStreamWaitEvent(second, event, 0));
  CUDA_OK(sample::scale(later.data(), x.data(), 2.0f, 64, first));
  CUDA_OK(cudaEventRecord(event, first));
  CUDA_OK(cudaStreamSynchronize(second));
  EXPECT_EQ(std::isnan(later.values_now()[0]), lazy());
  CUDA_OK(cudaEventSynchronize(event));
  EXPECT_EQ(later.values_now(), twos);
}

TEST_P(Streams, LoopsOfQueriesComeToAnEnd) {
  DeviceArray<float> x(ones), y(64);
  Stream stream, other;
  Event event, before;
  CUDA_OK(cudaEventRecord(before, other));
  CUDA_OK(cudaStreamWaitEvent(stream, before, 0));
  for (int i = 0; i < 5; ++i) CUDA_OK(sample::scale(y.data(), x.data(), 2.0f, 64, stream));
  CUDA_OK(cudaEventRecord(event, stream));
  int polls = 0;
  while (cudaEventQuery(event) == cudaErrorNotReady) ASSERT_LT(++polls, 100);
  EXPECT_EQ(polls > 0, lazy());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(y.values_now(), twos);
  CUDA_OK(sample::scale(y.data(), x.data(), 4.0f, 64, stream));
  for (polls = 0; cudaStreamQuery(stream) == cudaErrorNotReady;) ASSERT_LT(++polls, 100);
  EXPECT_EQ(y.values_now(), fours);
}

TEST_P(Streams, EventsMeasureTime) {
  Stream stream;
  Event begin, end, untimed(cudaEventDisableTiming), never;
  float milliseconds = -1;
  CUDA_OK(cudaEventRecord(begin, stream));
  CUDA_OK(cudaLaunchHostFunc(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }, nullptr));
  CUDA_OK(cudaEventRecord(end, stream));
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), lazy() ? cudaErrorNotReady : cudaSuccess);
  CUDA_OK(cudaEventSynchronize(end));
  cudaGetLastError();
  CUDA_OK(cudaEventElapsedTime(&milliseconds, begin, end));
  EXPECT_GE(milliseconds, 5.0f);
  CUDA_OK(cudaEventRecord(untimed, stream));
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, untimed), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, never), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventQuery(never), cudaSuccess);
  cudaGetLastError();
}

// ---- The default stream --------------------------------------------------------------------------------------------

TEST_P(Streams, BlockingStreamsAreOrderedWithTheDefaultStream) {
  DeviceArray<float> x(ones), y(64), z(64);
  Stream blocking(cudaStreamDefault);
  CUDA_OK(sample::scale(y.data(), x.data(), 2.0f, 64, blocking));
  CUDA_OK(sample::scale(z.data(), y.data(), 2.0f, 64, nullptr));
  EXPECT_EQ(z.values_now(), fours);
  CUDA_OK(sample::scale(y.data(), z.data(), 0.25f, 64, nullptr));
  CUDA_OK(sample::scale(z.data(), y.data(), 2.0f, 64, blocking));
  CUDA_OK(cudaStreamSynchronize(blocking));
  EXPECT_EQ(z.values_now(), twos);
}

// ---- Copies --------------------------------------------------------------------------------------------------------

TEST_P(Streams, PageableSourcesAreReadAtTheCall) {
  DeviceArray<float> y(64);
  Stream stream;
  std::vector<float> host = ones;
  CUDA_OK(cudaMemcpyAsync(y.data(), host.data(), 64 * sizeof(float), cudaMemcpyHostToDevice, stream));
  host = twos;
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(y.values_now(), ones);
}

TEST_P(Streams, PinnedSourcesAreReadWhenTheStreamGetsThere) {
  DeviceArray<float> y(64);
  Stream stream;
  Pinned<float> host(64);
  std::memcpy(host.data, ones.data(), 64 * sizeof(float));
  CUDA_OK(cudaMemcpyAsync(y.data(), host.data, 64 * sizeof(float), cudaMemcpyHostToDevice, stream));
  std::memcpy(host.data, twos.data(), 64 * sizeof(float));  // too early
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(y.values_now(), lazy() ? twos : ones);
}

TEST_P(Streams, PinnedDestinationsNeedASynchronization) {
  DeviceArray<float> x(ones), y(64);
  Stream stream;
  Pinned<float> host(64);
  CUDA_OK(sample::scale(y.data(), x.data(), 2.0f, 64, stream));
  CUDA_OK(cudaMemcpyAsync(host.data, y.data(), 64 * sizeof(float), cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(std::isnan(host.data[0]), lazy());
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(std::vector<float>(host.data, host.data + 64), twos);
}

TEST_P(Streams, PageableDestinationsAreThereOnReturn) {
  DeviceArray<float> x(ones), y(64);
  Stream stream;
  std::vector<float> host(64);
  CUDA_OK(sample::scale(y.data(), x.data(), 2.0f, 64, stream));
  CUDA_OK(cudaMemcpyAsync(host.data(), y.data(), 64 * sizeof(float), cudaMemcpyDefault, stream));
  EXPECT_EQ(host, twos);
}

TEST_P(Streams, RowsAreCopiedWithTheirPitch) {
  const std::vector<float> x = random_floats(60);
  DeviceArray<float> in(x), out(std::vector<float>(40, 0.0f));
  Stream stream;
  // Columns 3 to 5 of 10 rows of 6, into columns 1 to 3 of rows of 4.
  CUDA_OK(cudaMemcpy2DAsync(out.data() + 1, 4 * sizeof(float), in.data() + 3, 6 * sizeof(float), 3 * sizeof(float), 10,
                            cudaMemcpyDeviceToDevice, stream));
  const std::vector<float> y = out.values();
  for (std::size_t row = 0; row < 10; ++row) {
    EXPECT_EQ(y[4 * row], 0.0f);
    for (std::size_t column = 0; column < 3; ++column) EXPECT_EQ(y[4 * row + 1 + column], x[6 * row + 3 + column]);
  }
}

TEST_P(Streams, DestroyedStreamsStillDoTheirWork) {
  DeviceArray<float> x(ones), y(64);
  {
    Stream stream;
    CUDA_OK(sample::scale(y.data(), x.data(), 2.0f, 64, stream));
  }
  EXPECT_EQ(y.values(), twos);
}

TEST_P(Streams, FreeingMemoryWaitsForTheDevice) {
  DeviceArray<float> y(64);
  Stream stream;
  float* x = nullptr;
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&x), 64 * sizeof(float)));
  CUDA_OK(cudaMemsetAsync(x, 0, 64 * sizeof(float), stream));
  CUDA_OK(sample::scale(y.data(), x, 2.0f, 64, stream));
  CUDA_OK(cudaFree(x));
  EXPECT_EQ(y.values_now(), std::vector<float>(64, 0.0f));
}

// ---- Host threads --------------------------------------------------------------------------------------------------

TEST_P(Streams, HostThreadsShareADevice) {
  constexpr int threads = 4, rounds = 20;
  std::vector<std::thread> workers;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&] {
      DeviceArray<float> x(ones), y(64), z(64);
      Stream first, second;
      Event event;
      for (int round = 0; round < rounds; ++round) {
        EXPECT_EQ(sample::scale(y.data(), x.data(), static_cast<float>(round), 64, first), cudaSuccess);
        EXPECT_EQ(cudaEventRecord(event, first), cudaSuccess);
        EXPECT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
        EXPECT_EQ(sample::block_sums(z.data(), y.data(), 0, second), cudaErrorInvalidConfiguration);
        EXPECT_EQ(sample::scale(z.data(), y.data(), 2.0f, 64, second), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
        wrong += z.values_now()[63] != 2.0f * static_cast<float>(round) ? 1 : 0;
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(wrong, 0);
}

// Two host threads wait for two streams, each of which waits for the other in between.
TEST_P(Streams, WaitsMayCross) {
  Stream a, b;
  Event on_a, on_b;
  DeviceArray<float> x(ones), y(64), z(64);
  for (int round = 0; round < 20; ++round) {
    CUDA_OK(sample::scale(y.data(), x.data(), 2.0f, 64, a));
    CUDA_OK(cudaEventRecord(on_a, a));
    CUDA_OK(cudaStreamWaitEvent(b, on_a, 0));
    CUDA_OK(sample::scale(z.data(), y.data(), 2.0f, 64, b));
    CUDA_OK(cudaEventRecord(on_b, b));
    CUDA_OK(cudaStreamWaitEvent(a, on_b, 0));
    CUDA_OK(sample::scale(x.data(), z.data(), 0.25f, 64, a));
    std::thread other([&] { EXPECT_EQ(cudaStreamSynchronize(b), cudaSuccess); });
    CUDA_OK(cudaStreamSynchronize(a));
    other.join();
  }
  EXPECT_EQ(x.values(), ones);
}

// A worker may use a stream that another thread has made, once its own current device is that of the stream.
TEST_P(Streams, BelongToDevicesNotToThreads) {
  CUDA_OK(cudaSetDevice(2));
  {
    DeviceArray<float> x(ones), y(64);
    Stream stream;
    std::thread worker([&] {
      int device = -1;
      EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
      EXPECT_EQ(device, 0);
      EXPECT_EQ(cudaSetDevice(2), cudaSuccess);
      EXPECT_EQ(sample::scale(y.data(), x.data(), 2.0f, 64, stream), cudaSuccess);
    });
    worker.join();
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(y.values_now(), twos);
  }
  CUDA_OK(cudaSetDevice(0));
}

// ---- What is refused -----------------------------------------------------------------------------------------------

TEST(Copies, HaveToFitTheirKindAndTheirMemory) {
  DeviceArray<float> x(16), y(16);
  float host[16] = {};
  EXPECT_EQ(cudaMemcpy(host, host, sizeof host, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, x.data(), sizeof host, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(x.data(), host, sizeof host, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(x.data(), y.data(), sizeof host + 4, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(x.data() + 8, y.data(), 9 * sizeof(float), cudaMemcpyDefault), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(x.data(), 0, sizeof host + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(host, 0, sizeof host), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(x.data() + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(host), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(x.data(), y.data(), 0, cudaMemcpyDeviceToDevice), cudaSuccess);
}

TEST(Memory, RunsOut) {
  ScopedSettings settings;
  settings->device_memory = 1 << 20;
  std::size_t available = 0, total = 0;
  CUDA_OK(cudaMemGetInfo(&available, &total));
  EXPECT_EQ(total, std::size_t{1} << 20);
  EXPECT_EQ(available, total);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, total + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(memory, nullptr);
  CUDA_OK(cudaMalloc(&memory, total));
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 1), cudaErrorMemoryAllocation);
  CUDA_OK(cudaFree(memory));
  cudaGetLastError();
}

TEST(Pointers, TellWhatTheyPointTo) {
  DeviceArray<float> x(16);
  Pinned<float> pinned(16);
  float host = 0;
  cudaPointerAttributes attributes{};
  CUDA_OK(cudaPointerGetAttributes(&attributes, x.data() + 3));
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.device, 0);
  CUDA_OK(cudaPointerGetAttributes(&attributes, pinned.data + 3));
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  CUDA_OK(cudaPointerGetAttributes(&attributes, &host));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

TEST(Devices, AreAsManyAsTheSettingsSay) {
  ScopedSettings settings;
  settings->devices = 3;
  int count = 0;
  CUDA_OK(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 3);
  EXPECT_EQ(cudaSetDevice(3), cudaErrorInvalidDevice);
  settings->devices = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 0);
  cudaGetLastError();
}

TEST(StreamFaults, DestroyedHandles) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaEventCreate(&event));
  CUDA_OK(cudaEventDestroy(event));
  EXPECT_DEATH(cudaStreamSynchronize(stream), "stream .* was destroyed");
  EXPECT_DEATH(cudaEventSynchronize(event), "event .* was destroyed");
  CUDA_OK(cudaSetDevice(1));
  CUDA_OK(cudaEventCreate(&event));
  CUDA_OK(cudaSetDevice(0));
  EXPECT_DEATH(cudaEventRecord(event, nullptr), "an event of device 1 cannot be recorded in a stream of device 0");
  CUDA_OK(cudaEventDestroy(event));
}

}  // namespace
}  // namespace simulated_cuda
