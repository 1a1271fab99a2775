#include <Eigen/Core>
#include <algorithm>
#include <vector>

#include "common/ops/cpu/gemm.h"

namespace escalera::cpu {
namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Input = Eigen::Map<const Matrix<T>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <class T>
using Output = Eigen::Map<Matrix<T>, Eigen::Unaligned, Eigen::OuterStride<>>;

template <class T>
void multiply_as(const Product& p) {
  const Input<T> a(reinterpret_cast<const T*>(p.a), p.a_transposed ? p.k : p.m, p.a_transposed ? p.m : p.k,
                   Eigen::OuterStride<>(p.a_stride));
  const Input<T> b(reinterpret_cast<const T*>(p.b), p.b_transposed ? p.n : p.k, p.b_transposed ? p.k : p.n,
                   Eigen::OuterStride<>(p.b_stride));
  Output<T> c(reinterpret_cast<T*>(p.c), p.m, p.n, Eigen::OuterStride<>(p.c_stride));
  const auto assign = [&](const auto& product) {
    if (p.accumulate) {
      c.noalias() += product;
    } else {
      c.noalias() = product;
    }
  };
  if (p.a_transposed && p.b_transposed) {
    assign(a.transpose() * b.transpose());
  } else if (p.a_transposed) {
    assign(a.transpose() * b);
  } else if (p.b_transposed) {
    assign(a * b.transpose());
  } else {
    assign(a * b);
  }
}

class EigenGemm final : public Gemm {
 public:
  explicit EigenGemm(const Kernels& kernels) : kernels_(kernels) {}

  void multiply(const Product& product) override {
    switch (product.type) {
      case DType::float32: return multiply_as<float>(product);
      case DType::float64: return multiply_as<double>(product);
      case DType::bfloat16: return multiply_bfloat16(product);
    }
  }

 private:
  // A panel is converted once per row or column block of the result that uses it: for these sizes that costs about 1 % of
  // the multiplications, and the scratch stays near the second-level cache.
  static constexpr Index rows_at_once = 256, columns_at_once = 256, terms_at_once = 512;

  void multiply_bfloat16(const Product& p) {
    for (Index n = 0; n < p.n; n += columns_at_once) {
      const Product columns = p.columns(n, std::min(columns_at_once, p.n - n));
      for (Index m = 0; m < p.m; m += rows_at_once) multiply_block(columns.rows(m, std::min(rows_at_once, p.m - m)));
    }
  }

  /// One block of the result: sums in float32 over all terms, rounded once at the end.
  void multiply_block(const Product& p) {
    sums_.resize(static_cast<std::size_t>(p.m * p.n));
    for (Index k = 0; k < p.k; k += terms_at_once) {
      Product part = p.terms(k, std::min(terms_at_once, p.k - k));
      part.a = to_float(part.a, part.a_stride, part.a_transposed ? part.k : part.m,
                        part.a_transposed ? part.m : part.k, a_panel_);
      part.a_stride = part.a_transposed ? part.m : part.k;
      part.b = to_float(part.b, part.b_stride, part.b_transposed ? part.n : part.k,
                        part.b_transposed ? part.k : part.n, b_panel_);
      part.b_stride = part.b_transposed ? part.k : part.n;
      part.c = reinterpret_cast<std::byte*>(sums_.data());
      part.c_stride = p.n;
      part.accumulate = k > 0;
      multiply_as<float>(part);
    }
    for (Index row = 0; row < p.m; row++) {
      float* sums = sums_.data() + row * p.n;
      std::byte* c = p.c + row * p.c_stride * size_of(p.c_type);
      if (p.c_type == DType::float32) {
        if (p.accumulate) {
          kernels_.float32.accumulate(sums, reinterpret_cast<float*>(c), p.n);
        } else {
          std::copy_n(sums, p.n, reinterpret_cast<float*>(c));
        }
      } else {
        if (p.accumulate) kernels_.bfloat16.accumulate(reinterpret_cast<const Bits16*>(c), sums, p.n);
        kernels_.convert[static_cast<int>(DType::float32)][static_cast<int>(DType::bfloat16)](sums, c, p.n);
      }
    }
  }

  const std::byte* to_float(const std::byte* source, Index stride, Index rows, Index columns, std::vector<float>& panel) {
    panel.resize(static_cast<std::size_t>(rows * columns));
    const auto convert = kernels_.convert[static_cast<int>(DType::bfloat16)][static_cast<int>(DType::float32)];
    for (Index row = 0; row < rows; row++) {
      convert(source + row * stride * size_of(DType::bfloat16), panel.data() + row * columns, columns);
    }
    return reinterpret_cast<const std::byte*>(panel.data());
  }

  const Kernels& kernels_;
  std::vector<float> a_panel_, b_panel_, sums_;
};

}  // namespace

std::unique_ptr<Gemm> make_eigen_gemm(const Kernels& kernels) { return std::make_unique<EigenGemm>(kernels); }

}  // namespace escalera::cpu
