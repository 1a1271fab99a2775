#include "common/ops/cuda/cuda_ops.h"

#include <algorithm>

namespace escalera::cuda {

std::unique_ptr<Ops> make_ops(int ordinal) { return std::make_unique<CudaOps>(ordinal); }

CudaOps::CudaOps(int ordinal) : device_(ordinal), gemm_(device_) {}

std::string CudaOps::description() const {
  int runtime = 0;
  CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  const std::size_t blas = cublasLtGetVersion();
  return fmt::format("{}, matrix products by cuBLASLt {}.{}.{}, CUDA runtime {}.{}", device_.description(), blas / 10000,
                     blas % 10000 / 100, blas % 100, runtime / 1000, runtime % 1000 / 10);
}

const std::int32_t* CudaOps::RepeatedList::on_device(CudaDevice& device, std::span<const std::int32_t> values) {
  if (!std::ranges::equal(values, values_)) {
    values_.clear();  // if anything below throws, nothing is remembered
    const Index count = static_cast<Index>(values.size());
    if (copy_.empty() || copy_.size() < count) {
      copy_ = Tensor();
      copy_ = device.empty(1, count, DType::float32, MemoryCategory::workspace);
    }
    device.copy(copy_.data(), device.upload(values), count * static_cast<Index>(sizeof(std::int32_t)));
    values_.assign(values.begin(), values.end());
  }
  return static_cast<const std::int32_t*>(copy_.data());
}

}  // namespace escalera::cuda
