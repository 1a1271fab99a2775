// The linear layer as three matrix products.
#include "common/ops/checks.h"
#include "common/ops/cuda/cuda_ops.h"

namespace escalera::cuda {
namespace {

/// A matrix in a product, as it is stored or transposed.
struct Factor {
  const Tensor& tensor;
  bool transposed = false;
};

MatrixProduct product_of(const Factor& a, const Factor& b, const Tensor& c, bool accumulate) {
  return {.m = c.rows(),
          .n = c.columns(),
          .k = a.transposed ? a.tensor.rows() : a.tensor.columns(),
          .a = a.tensor.data(),
          .a_stride = a.tensor.columns(),
          .a_transposed = a.transposed,
          .b = b.tensor.data(),
          .b_stride = b.tensor.columns(),
          .b_transposed = b.transposed,
          .c = c.data(),
          .c_stride = c.columns(),
          .type = a.tensor.dtype(),
          .c_type = c.dtype(),
          .accumulate = accumulate};
}

}  // namespace

void CudaOps::linear_forward(const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate) {
  check_linear_forward(x, w, y);
  gemm_.multiply(product_of({x}, {w, true}, y, accumulate));
}

void CudaOps::linear_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx, bool accumulate) {
  check_linear_backward_input(dy, w, dx);
  gemm_.multiply(product_of({dy}, {w}, dx, accumulate));
}

void CudaOps::linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw) {
  check_linear_backward_weight(dy, x, dw);
  gemm_.multiply(product_of({dy, true}, {x}, dw, true));
}

}  // namespace escalera::cuda
