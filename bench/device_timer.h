// How long the device works on a call, whatever the host takes to hand it out.
// defines: Timing, DeviceTimer
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "common/core/tensor.h"

namespace escalera::bench {

/// Seconds of one call.
struct Timing {
  double device = 0;  ///< median of the rounds
  double host = 0;    ///< until the call returned, at best
};

/// Calls are asynchronous, and some take the host longer than the device: launches, sorted token lists. In a training step the
/// host is far ahead, so that costs nothing; here it would be measured instead of the kernel. So each round starts with copies
/// that keep the device busy until all calls have been handed out, and their time is taken off again.
class DeviceTimer {
 public:
  /// With `quick`, every call is made twice and timed once, the host's work included: for tests that only look at results.
  DeviceTimer(Device& device, bool quick) : device_(device), quick_(quick) {
    const Index bytes = quick ? Index{1} << 12 : Index{1} << 30;
    from_ = device.zeros(1, bytes / 4, DType::float32, MemoryCategory::workspace);
    to_ = device.empty(1, bytes / 4, DType::float32, MemoryCategory::workspace);
  }

  /// At most `most_calls` per round: fewer than the default for calls that wait when they get too far ahead.
  Timing measure(const std::function<void()>& call, int most_calls = 256) {
    call();  // the first call of its kind chooses algorithms and makes the arena grow
    device_.synchronize();
    Timing timing;
    if (quick_) {
      timing.device = round(0, 1, call, timing.host);
      return timing;
    }
    // The calls of a round: what keeps the device busy for 20 ms. One call alone gives an estimate, a round with it a better one.
    double host = 0, seconds = round(0, 1, call, host);
    int calls = 1;
    for (int i = 0; i < 2; i++) {
      calls = std::clamp(static_cast<int>(calls * 20e-3 / seconds), 1, most_calls);
      seconds = device_seconds(calls, call, host);
    }
    timing.host = host;
    std::vector<double> samples;
    for (int i = 0; i < 7; i++) {
      samples.push_back(device_seconds(calls, call, host) / calls);
      timing.host = std::min(timing.host, host);
    }
    std::ranges::nth_element(samples, samples.begin() + 3);
    timing.device = samples[3];
    return timing;
  }

  /// Bytes per second of Device::copy, read and written: what kernels that are bound by memory are held against.
  double copy_bandwidth() {
    if (bandwidth_ == 0)
      bandwidth_ = 2.0 * static_cast<double>(from_.bytes()) / measure([&] { fill(1); }, 64).device;
    return bandwidth_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  void fill(int copies) {
    for (int i = 0; i < copies; i++) device_.copy(to_.data(), from_.data(), from_.bytes());
  }

  /// Seconds of `fillers` copies and `calls` calls until the device is idle again; `host`: of handing out one call.
  double round(int fillers, int calls, const std::function<void()>& call, double& host) {
    device_.synchronize();
    const Clock::time_point begin = Clock::now();
    fill(fillers);
    const Clock::time_point first = Clock::now();
    for (int i = 0; i < calls; i++) call();
    host = since(first) / std::max(calls, 1);
    device_.synchronize();
    return since(begin);
  }

  /// Seconds of `calls` calls on the device. `host` comes in as an estimate and goes out as measured.
  double device_seconds(int calls, const std::function<void()>& call, double& host) {
    double ignored = 0;
    if (filler_seconds_ == 0) filler_seconds_ = round(8, 0, call, ignored) / 8;
    const int fillers = static_cast<int>(std::min(1.5 * host * calls / filler_seconds_, 200.0)) + 1;
    const double alone = round(fillers, 0, call, ignored);
    return std::max(round(fillers, calls, call, host) - alone, 1e-9);
  }

  Device& device_;
  bool quick_;
  Tensor from_, to_;
  double filler_seconds_ = 0, bandwidth_ = 0;
};

}  // namespace escalera::bench
