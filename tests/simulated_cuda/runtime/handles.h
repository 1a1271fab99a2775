// Which handles are alive: a stream or event that was destroyed, or never was one, is noticed.
// defines: LiveHandles, live_streams(), live_events()
#pragma once

#include <mutex>
#include <set>

#include <cuda_runtime.h>

namespace simulated_cuda {

template <class Handle>
class LiveHandles {
 public:
  void add(Handle handle) {
    std::lock_guard lock(mutex_);
    handles_.insert(handle);
  }
  /// False if it was not there.
  bool remove(Handle handle) {
    std::lock_guard lock(mutex_);
    return handles_.erase(handle) > 0;
  }
  bool contains(Handle handle) const {
    std::lock_guard lock(mutex_);
    return handles_.count(handle) > 0;
  }

 private:
  mutable std::mutex mutex_;
  std::set<Handle> handles_;
};

LiveHandles<cudaStream_t>& live_streams();
LiveHandles<cudaEvent_t>& live_events();

}  // namespace simulated_cuda
