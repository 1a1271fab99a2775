// What the tests of simulated CUDA share.
// defines: CUDA_OK, ScopedSettings, DeviceArray, random_floats(), run_ranks(), sanitizer questions
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include <simulated_cuda/sanitizer_choice.h>
#include <simulated_cuda/settings.h>

#define CUDA_OK(call) ASSERT_EQ(call, cudaSuccess) << cudaGetErrorString(cudaGetLastError())

namespace simulated_cuda {

#ifdef SIMULATED_CUDA_ADDRESS_SANITIZER
inline constexpr bool with_address_sanitizer = true;
#else
inline constexpr bool with_address_sanitizer = false;
#endif
#ifdef SIMULATED_CUDA_THREAD_SANITIZER
inline constexpr bool with_thread_sanitizer = true;
#else
inline constexpr bool with_thread_sanitizer = false;
#endif

/// Settings as a test changed them, until its end.
class ScopedSettings {
 public:
  ScopedSettings() : before_(settings()) {}
  ~ScopedSettings() { settings() = before_; }
  ScopedSettings(const ScopedSettings&) = delete;
  ScopedSettings& operator=(const ScopedSettings&) = delete;
  Settings* operator->() { return &settings(); }

 private:
  Settings before_;
};

/// Elements in the memory of the current device.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return data_; }
  std::size_t size() const { return size_; }
  /// What is there when the work of all streams is done.
  std::vector<T> values() {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return values_now();
  }
  /// What is there at the moment; only streams that the default stream waits for come first.
  std::vector<T> values_now() {
    std::vector<T> result(size_);
    EXPECT_EQ(cudaMemcpy(result.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return result;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

/// `count` numbers between -1 and 1, always the same for one seed.
std::vector<float> random_floats(std::size_t count, unsigned seed = 1);

/// Runs body(rank) on a host thread for each rank; the current device of each is its rank.
void run_ranks(int ranks, const std::function<void(int rank)>& body);

}  // namespace simulated_cuda
