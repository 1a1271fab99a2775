// The linear layer as three matrix products, and how one product is shared out among the threads.
#include <algorithm>

#include "common/ops/cpu/cpu_ops.h"
#include "common/ops/cpu/tensor_access.h"

namespace escalera::cpu {
namespace {

// Threads get whole blocks of this many rows or columns: a product over fewer leaves part of each vector register (or matrix
// tile) idle, and odd counts would need slower code at the edges.
constexpr Index block = 32;

const std::byte* bytes(const Tensor& tensor) { return static_cast<const std::byte*>(tensor.data()); }
std::byte* mutable_bytes(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data()); }

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
  check(w, w.rows(), x.columns(), x.dtype(), "linear_forward: w");
  check(y, x.rows(), w.rows(), x.dtype(), "linear_forward: y");
  multiply({.m = x.rows(),
            .n = w.rows(),
            .k = x.columns(),
            .a = bytes(x),
            .a_stride = x.columns(),
            .b = bytes(w),
            .b_stride = w.columns(),
            .b_transposed = true,
            .c = mutable_bytes(y),
            .c_stride = y.columns(),
            .type = x.dtype(),
            .c_type = x.dtype(),
            .accumulate = accumulate});
}

void CpuOps::linear_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx, bool accumulate) {
  check(w, dy.columns(), w.columns(), dy.dtype(), "linear_backward_input: w");
  check(dx, dy.rows(), w.columns(), dy.dtype(), "linear_backward_input: dx");
  multiply({.m = dy.rows(),
            .n = w.columns(),
            .k = dy.columns(),
            .a = bytes(dy),
            .a_stride = dy.columns(),
            .b = bytes(w),
            .b_stride = w.columns(),
            .c = mutable_bytes(dx),
            .c_stride = dx.columns(),
            .type = dy.dtype(),
            .c_type = dy.dtype(),
            .accumulate = accumulate});
}

void CpuOps::linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw) {
  check(x, dy.rows(), x.columns(), dy.dtype(), "linear_backward_weight: x");
  check(dw, dy.columns(), x.columns(), accumulation_dtype(dy.dtype()), "linear_backward_weight: dw");
  // Each thread makes some rows of dw from all tokens: no partial gradients, and a sum whose order no split changes.
  multiply({.m = dy.columns(),
            .n = x.columns(),
            .k = dy.rows(),
            .a = bytes(dy),
            .a_stride = dy.columns(),
            .a_transposed = true,
            .b = bytes(x),
            .b_stride = x.columns(),
            .c = mutable_bytes(dw),
            .c_stride = dw.columns(),
            .type = dy.dtype(),
            .c_type = dw.dtype(),
            .accumulate = true});
}

}  // namespace escalera::cpu
