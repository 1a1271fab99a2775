// Matrices on a device, and the device that owns their memory.
// defines: Device, HostDevice, Tensor
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/core/arena.h"
#include "common/core/dtype.h"
#include "common/core/memory.h"
#include "common/core/trace.h"

namespace escalera {

class Tensor;

/// Where tensors live. A device belongs to one rank and is used by one thread at a time; it must outlive its tensors.
class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// "cpu" or "cuda:0".
  virtual std::string_view name() const = 0;

  /// A new row-major matrix with undefined contents, or NaN everywhere when poisoning is on.
  Tensor empty(Index rows, Index columns, DType dtype, MemoryCategory category);
  /// A new row-major matrix of zeros.
  Tensor zeros(Index rows, Index columns, DType dtype, MemoryCategory category);

  /// Sets bytes of device memory to zero, in the order of the device's work.
  virtual void zero(void* data, Index bytes) = 0;
  /// Copies between two places of this device, in the order of its work.
  virtual void copy(void* destination, const void* source, Index bytes) = 0;
  /// Copies from the host; `source` may be reused on return.
  virtual void copy_from_host(void* destination, const void* source, Index bytes) = 0;
  /// Copies to the host; blocks until the data is there.
  virtual void copy_to_host(void* destination, const void* source, Index bytes) = 0;
  /// Blocks until all work given to this device is done.
  virtual void synchronize() = 0;
  /// Records in row "compute" of `trace` when the device does the work that is given to it from now until the returned object
  /// goes. Null, and nothing recorded, if the trace is null or off.
  virtual std::shared_ptr<void> span(Trace* trace, std::string_view name);

  /// What this device's tensors hold, by category.
  /// @{
  MemoryLedger& memory() { return memory_; }
  const MemoryLedger& memory() const { return memory_; }
  /// @}

  /// Fills every new tensor with NaN from now on. Tests switch it on: whoever reads memory before writing it is found.
  void set_poison(bool on) { poison_ = on; }

 protected:
  /// A block of `bytes` (0 is allowed) with undefined contents, aligned for every kernel; release() gets it back with the
  /// same size. Neither books in the ledger.
  /// @{
  virtual std::byte* allocate(Index bytes) = 0;
  virtual void release(std::byte* block, Index bytes) noexcept = 0;
  /// @}
  /// Sets every byte to `value`, in the order of the device's work.
  virtual void fill_bytes(std::byte* block, Index bytes, unsigned char value) = 0;

 private:
  friend class Tensor;
  friend struct TensorStorage;
  MemoryLedger memory_;
  bool poison_ = false;
};

/// The CPU's memory.
class HostDevice final : public Device {
 public:
  std::string_view name() const override { return "cpu"; }
  void zero(void* data, Index bytes) override;
  void copy(void* destination, const void* source, Index bytes) override;
  void copy_from_host(void* destination, const void* source, Index bytes) override;
  void copy_to_host(void* destination, const void* source, Index bytes) override;
  void synchronize() override {}

 protected:
  std::byte* allocate(Index bytes) override;
  void release(std::byte* block, Index bytes) noexcept override;
  void fill_bytes(std::byte* block, Index bytes, unsigned char value) override;

 private:
  Arena arena_;
};

/// A row-major matrix [rows, columns] on a device; a vector is a matrix with one row. Copies of a Tensor share the same
/// memory, which goes back to the device with the last of them. Higher dimensions are spelled out where they matter:
/// activations are [batch * sequence, features].
class Tensor {
 public:
  /// No tensor: empty() is true.
  Tensor() = default;

  /// Whether there is no memory behind it.
  bool empty() const { return data_ == nullptr; }
  /// Shape, elements, and bytes of all elements.
  /// @{
  Index rows() const { return rows_; }
  Index columns() const { return columns_; }
  Index size() const { return rows_ * columns_; }
  Index bytes() const { return size() * size_of(dtype_); }
  /// @}
  /// Type of the elements.
  DType dtype() const { return dtype_; }
  /// The first element, in device memory; null if empty(). A const Tensor is a fixed view, not fixed contents.
  void* data() const { return data_; }
  /// The elements as `T`, which must be the tensor's element type.
  template <class T>
  T* as() const {
    require(empty() || DTypeOf<T>::value == dtype_, "tensor of {} read as {}", to_string(dtype_),
            to_string(DTypeOf<T>::value));
    return reinterpret_cast<T*>(data_);
  }

  /// A view of `count` rows from row `begin`.
  Tensor slice_rows(Index begin, Index count) const;
  /// A view of `count` elements from flat position `begin`, as a matrix [rows, count / rows].
  Tensor slice_flat(Index begin, Index count, Index rows = 1) const;
  /// The same elements as a matrix [rows, size / rows].
  Tensor reshape(Index rows) const;

 private:
  friend class Device;
  std::shared_ptr<struct TensorStorage> storage_;
  std::byte* data_ = nullptr;
  Index rows_ = 0;
  Index columns_ = 0;
  DType dtype_ = DType::float32;
};

/// The elements of `tensor` on the host, converted to double. Blocks. For tests, dumps and checkpoints.
std::vector<double> to_host(Device& device, const Tensor& tensor);
/// Writes host values, rounded to the tensor's type, into `tensor`.
void from_host(Device& device, std::span<const double> values, const Tensor& tensor);

}  // namespace escalera
