// One GPU as a rank sees it: memory in an arena, one compute stream, and a wait that notices when others have failed.
// defines: CudaDevice
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <string>

#include "common/core/cuda/stream.h"
#include "common/core/cuda/stream_spans.h"
#include "common/core/tensor.h"

namespace escalera::cuda {

/// Device `ordinal` for one rank. All work goes to one compute stream, in the order of the calls; a block of memory that is
/// freed and handed out again is therefore safe without waiting, as long as other streams are ordered with this one by
/// events. The CUDA runtime keeps the current device per thread: a thread other than the maker calls use() first.
class CudaDevice final : public Device {
 public:
  /// Throws UsageError if there is no such device.
  explicit CudaDevice(int ordinal);
  ~CudaDevice() override;

  std::string_view name() const override { return name_; }
  void zero(void* data, Index bytes) override;
  void copy(void* destination, const void* source, Index bytes) override;
  void copy_from_host(void* destination, const void* source, Index bytes) override;
  void copy_to_host(void* destination, const void* source, Index bytes) override;
  void synchronize() override;
  std::shared_ptr<void> span(Trace* trace, std::string_view name) override;

  int ordinal() const { return ordinal_; }
  /// Makes this the current device of the calling thread.
  void use() const { CUDA_CHECK(cudaSetDevice(ordinal_)); }
  /// The compute stream.
  cudaStream_t stream() const { return stream_.get(); }
  /// "NVIDIA H100 80GB HBM3, 132 SMs, sm_90".
  std::string description() const;

  /// A copy of `values` in device memory for the work that is given to the compute stream next. It does not wait for the
  /// device and stays valid until that work is done; `values` may be reused on return.
  const std::int32_t* upload(std::span<const std::int32_t> values);

  /// Blocks the host until `event` has happened, and runs the monitors meanwhile: whoever depends on other ranks learns here
  /// that they are gone. Throws what a monitor throws.
  void wait_for(const Event& event);
  /// `monitor` is run every few milliseconds of a wait and at its end, on the waiting thread. The handle ends it.
  /// @{
  using Monitor = std::list<std::function<void()>>::iterator;
  Monitor add_monitor(std::function<void()> monitor);
  void remove_monitor(Monitor monitor);
  /// @}

 protected:
  std::byte* allocate(Index bytes) override;
  void release(std::byte* block, Index bytes) noexcept override;
  void fill_bytes(std::byte* block, Index bytes, unsigned char value) override;

 private:
  /// Half of the upload ring: values wait here, in pinned host memory, until the copy engine has read them.
  struct UploadHalf {
    std::int32_t* host = nullptr;
    std::int32_t* device = nullptr;
    Index capacity = 0, used = 0;
    Event copied;
  };
  void grow(UploadHalf& half, Index values);
  static void free(UploadHalf& half) noexcept;

  int ordinal_;
  std::string name_;
  Stream stream_;
  Event idle_;
  Arena arena_;
  UploadHalf halves_[2];
  int half_ = 0;
  std::list<std::function<void()>> monitors_;
  StreamSpans spans_;
};

}  // namespace escalera::cuda
