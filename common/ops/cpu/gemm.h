// Matrix products on one thread: what the linear layers split among the threads of a rank.
// defines: Product, Gemm, make_eigen_gemm(), make_onednn_gemm(), onednn_description()
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "common/core/dtype.h"
#include "common/ops/cpu/kernels.h"

namespace escalera::cpu {

/// c [m, n] = a [m, k] * b [k, n], or c += with `accumulate`. A matrix may be stored transposed; its stride is the distance
/// between the rows as they lie in memory.
struct Product {
  Index m = 0, n = 0, k = 0;
  const std::byte* a = nullptr;
  Index a_stride = 0;
  bool a_transposed = false;
  const std::byte* b = nullptr;
  Index b_stride = 0;
  bool b_transposed = false;
  std::byte* c = nullptr;
  Index c_stride = 0;
  DType type = DType::float32;    ///< of a and b
  DType c_type = DType::float32;  ///< `type` or accumulation_dtype(type)
  bool accumulate = false;

  /// The part of this product that makes rows [begin, begin + count) of c.
  Product rows(Index begin, Index count) const {
    Product part = *this;
    part.m = count;
    part.a += begin * (a_transposed ? 1 : a_stride) * size_of(type);
    part.c += begin * c_stride * size_of(c_type);
    return part;
  }
  /// The part that makes columns [begin, begin + count) of c.
  Product columns(Index begin, Index count) const {
    Product part = *this;
    part.n = count;
    part.b += begin * (b_transposed ? b_stride : 1) * size_of(type);
    part.c += begin * size_of(c_type);
    return part;
  }
  /// The part that adds up terms [begin, begin + count); the first part must come first, and the others accumulate.
  Product terms(Index begin, Index count) const {
    Product part = *this;
    part.k = count;
    part.a += begin * (a_transposed ? a_stride : 1) * size_of(type);
    part.b += begin * (b_transposed ? 1 : b_stride) * size_of(type);
    part.accumulate = accumulate || begin > 0;
    return part;
  }
};

/// Computes products on the calling thread. Each thread has its own: it holds scratch and prepared kernels.
class Gemm {
 public:
  virtual ~Gemm() = default;
  /// m, n and k are at least 1.
  virtual void multiply(const Product& product) = 0;
};

/// Eigen, for every type; bfloat16 by converting panels to float32.
std::unique_ptr<Gemm> make_eigen_gemm(const Kernels& kernels);

/// oneDNN for what it can do on this processor, the rest left to `fallback`. Returns `fallback` where oneDNN was not built in.
std::unique_ptr<Gemm> make_onednn_gemm(std::unique_ptr<Gemm> fallback);
/// "oneDNN 2.6.3 (float32, bfloat16)", or "" where it was not built in.
std::string onednn_description();

}  // namespace escalera::cpu
