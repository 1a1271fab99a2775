// Matrix products by cuBLASLt.
// defines: MatrixProduct, Gemm
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "common/core/cuda/cuda_device.h"

namespace escalera::cuda {

/// c [m, n] = a [m, k] * b [k, n], or c += with `accumulate`. A matrix may be stored transposed; its stride is the distance
/// between the rows as they lie in memory. Sums are float32 whatever the types.
struct MatrixProduct {
  Index m = 0, n = 0, k = 0;
  const void* a = nullptr;
  Index a_stride = 0;
  bool a_transposed = false;
  const void* b = nullptr;
  Index b_stride = 0;
  bool b_transposed = false;
  void* c = nullptr;
  Index c_stride = 0;
  DType type = DType::float32;    ///< of a and b: float32 or bfloat16
  DType c_type = DType::float32;  ///< `type` or float32
  bool accumulate = false;

  /// "[8192, 2048] x [2048, 6144], bfloat16 to float32, accumulated".
  std::string description() const;
};

/// The algorithm for each kind of product is asked for once and kept; after that a product costs the host one call.
class Gemm {
 public:
  /// Takes its workspace from `device`, which must outlive it.
  explicit Gemm(CudaDevice& device);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// In the order of the device's compute stream. Nothing happens if there are no elements; an empty sum (k = 0) is zero.
  /// Throws Error, naming the shapes, if cuBLASLt cannot do it.
  void multiply(const MatrixProduct& product);

 private:
  /// All that cuBLASLt's choice depends on.
  struct Key {
    Index m, n, k, a_stride, b_stride, c_stride;
    DType type, c_type;
    bool a_transposed, b_transposed, accumulate;
    std::uint32_t a_alignment, b_alignment, c_alignment;  // in bytes
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };
  struct Plan;
  const Plan& plan_for(const MatrixProduct& product);

  CudaDevice& device_;
  cublasLtHandle_t handle_ = nullptr;
  Tensor workspace_;
  std::unordered_map<Key, std::unique_ptr<Plan>, Hash> plans_;
};

}  // namespace escalera::cuda
