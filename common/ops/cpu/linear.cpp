// The linear layer as three matrix products, and how one product is shared out among the threads.
#include <algorithm>

#include "common/ops/checks.h"
#include "common/ops/cpu/cpu_ops.h"
#include "common/ops/cpu/tensor_access.h"

namespace escalera::cpu {
namespace {

// Threads get whole blocks of this many rows or columns: a product over fewer leaves part of each vector register (or matrix
// tile) idle, and odd counts would need slower code at the edges.
constexpr Index block = 32;

/// A matrix in a product, as it is stored or transposed.
struct Factor {
  const Tensor& tensor;
  bool transposed = false;
};

Product product_of(const Factor& a, const Factor& b, const Tensor& c, bool accumulate) {
  return {.m = c.rows(),
          .n = c.columns(),
          .k = a.transposed ? a.tensor.rows() : a.tensor.columns(),
          .a = static_cast<const std::byte*>(a.tensor.data()),
          .a_stride = a.tensor.columns(),
          .a_transposed = a.transposed,
          .b = static_cast<const std::byte*>(b.tensor.data()),
          .b_stride = b.tensor.columns(),
          .b_transposed = b.transposed,
          .c = static_cast<std::byte*>(c.data()),
          .c_stride = c.columns(),
          .type = a.tensor.dtype(),
          .c_type = c.dtype(),
          .accumulate = accumulate};
}

}  // namespace

void CpuOps::multiply(const Product& product) {
  if (product.m == 0 || product.n == 0) return;
  if (product.k == 0) {
    // An empty sum: zero, or what was there.
    if (!product.accumulate) device_.zero(product.c, product.m * product.n * size_of(product.c_type));
    return;
  }
  // Rows of the result, unless there are too few for all threads (a token or two when text is generated).
  const bool by_rows = product.m >= block * pool_.size() || product.m >= product.n;
  const Index length = by_rows ? product.m : product.n;
  const Index blocks = (length + block - 1) / block;
  const Index multiplications = block * (by_rows ? product.n : product.m) * product.k;
  parallel(blocks, multiplications / 16, [&](Index begin, Index end, int thread) {
    const Index first = begin * block;
    const Index count = std::min(end * block, length) - first;
    gemms_[static_cast<std::size_t>(thread)]->multiply(by_rows ? product.rows(first, count) : product.columns(first, count));
  });
}

void CpuOps::linear_forward(const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate) {
  check_linear_forward(x, w, y);
  multiply(product_of({x}, {w, true}, y, accumulate));
}

void CpuOps::linear_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx, bool accumulate) {
  check_linear_backward_input(dy, w, dx);
  multiply(product_of({dy}, {w}, dx, accumulate));
}

void CpuOps::linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw) {
  check_linear_backward_weight(dy, x, dw);
  // Each thread makes some rows of dw from all tokens: no partial gradients, and a sum whose order no split changes.
  multiply(product_of({dy, true}, {x}, dw, true));
}

}  // namespace escalera::cpu
