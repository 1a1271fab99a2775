#include "common/core/tensor.h"

#include <cstring>

namespace escalera {

/// The owner of one block of device memory.
struct TensorStorage {
  Device& device;
  MemoryCategory category;
  Index bytes;
  std::byte* block = nullptr;

  TensorStorage(Device& device_, MemoryCategory category_, Index bytes_)
      : device(device_), category(category_), bytes(bytes_) {
    device.memory().add(category, bytes);
    try {
      block = device.allocate(bytes);
    } catch (...) {
      device.memory().remove(category, bytes);
      throw;
    }
  }
  ~TensorStorage() {
    device.release(block, bytes);
    device.memory().remove(category, bytes);
  }
  TensorStorage(const TensorStorage&) = delete;
  TensorStorage& operator=(const TensorStorage&) = delete;
};

Tensor Device::empty(Index rows, Index columns, DType dtype, MemoryCategory category) {
  require(rows >= 0 && columns >= 0, "a tensor cannot have the shape [{}, {}]", rows, columns);
  Tensor tensor;
  tensor.rows_ = rows;
  tensor.columns_ = columns;
  tensor.dtype_ = dtype;
  tensor.storage_ = std::make_shared<TensorStorage>(*this, category, tensor.bytes());
  tensor.data_ = tensor.storage_->block;
  if (poison_) fill_bytes(tensor.data_, tensor.bytes(), 0xff);  // all bits set is a NaN in every element type
  return tensor;
}

Tensor Device::zeros(Index rows, Index columns, DType dtype, MemoryCategory category) {
  Tensor tensor = empty(rows, columns, dtype, category);
  zero(tensor.data(), tensor.bytes());
  return tensor;
}

// Right for a device that has done its work when the call returns.
std::shared_ptr<void> Device::span(Trace* trace, std::string_view name) {
  if (!trace || !trace->enabled()) return nullptr;
  return std::make_shared<TraceSpan>(trace, "compute", name);
}

void HostDevice::zero(void* data, Index bytes) { fill_bytes(static_cast<std::byte*>(data), bytes, 0); }

void HostDevice::copy(void* destination, const void* source, Index bytes) {
  if (bytes > 0) std::memcpy(destination, source, static_cast<std::size_t>(bytes));
}

void HostDevice::copy_from_host(void* destination, const void* source, Index bytes) { copy(destination, source, bytes); }

void HostDevice::copy_to_host(void* destination, const void* source, Index bytes) { copy(destination, source, bytes); }

std::byte* HostDevice::allocate(Index bytes) { return arena_.allocate(static_cast<std::size_t>(bytes)); }

void HostDevice::release(std::byte* block, Index bytes) noexcept {
  arena_.release(block, static_cast<std::size_t>(bytes));
}

void HostDevice::fill_bytes(std::byte* block, Index bytes, unsigned char value) {
  if (bytes > 0) std::memset(block, value, static_cast<std::size_t>(bytes));
}

Tensor Tensor::slice_rows(Index begin, Index count) const {
  require(begin >= 0 && count >= 0 && begin + count <= rows_, "rows {} to {} of a tensor with {} rows", begin,
          begin + count, rows_);
  Tensor view = *this;
  view.data_ = data_ + begin * columns_ * size_of(dtype_);
  view.rows_ = count;
  return view;
}

Tensor Tensor::slice_flat(Index begin, Index count, Index rows) const {
  require(begin >= 0 && count >= 0 && begin + count <= size(), "elements {} to {} of a tensor with {}", begin,
          begin + count, size());
  require(rows > 0 && count % rows == 0, "{} elements do not form {} rows", count, rows);
  Tensor view = *this;
  view.data_ = data_ + begin * size_of(dtype_);
  view.rows_ = rows;
  view.columns_ = count / rows;
  return view;
}

Tensor Tensor::reshape(Index rows) const { return slice_flat(0, size(), rows); }

std::vector<double> to_host(Device& device, const Tensor& tensor) {
  std::vector<double> values(static_cast<std::size_t>(tensor.size()));
  dispatch(tensor.dtype(), [&]<class T>() {
    std::vector<T> raw(values.size());
    device.copy_to_host(raw.data(), tensor.data(), tensor.bytes());
    for (std::size_t i = 0; i < raw.size(); i++) values[i] = static_cast<double>(static_cast<Accumulator<T>>(raw[i]));
  });
  return values;
}

void from_host(Device& device, std::span<const double> values, const Tensor& tensor) {
  require(static_cast<Index>(values.size()) == tensor.size(), "{} values for a tensor of {} elements", values.size(),
          tensor.size());
  dispatch(tensor.dtype(), [&]<class T>() {
    std::vector<T> raw(values.size());
    for (std::size_t i = 0; i < raw.size(); i++) raw[i] = static_cast<T>(static_cast<Accumulator<T>>(values[i]));
    device.copy_from_host(tensor.data(), raw.data(), tensor.bytes());
  });
}

}  // namespace escalera
