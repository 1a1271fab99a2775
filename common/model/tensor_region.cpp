#include "common/model/tensor_region.h"

namespace escalera {

Tensor TensorRegion::column_linear(const Tensor& x, const LinearRef& w, MemoryCategory category) {
  const Tensor whole = enter(x);
  const Tensor y = ops_.device().empty(whole.rows(), w.weight.rows(), whole.dtype(), category);
  ops_.linear_forward(whole, w.weight, y);
  return y;
}

Tensor TensorRegion::row_linear(const Tensor& x, const LinearRef& w, MemoryCategory category) {
  const Tensor partial = partial_sum(x.rows(), w.weight.rows(), x.dtype(), category);
  ops_.linear_forward(x, w.weight, partial);
  return exit(partial, category);
}

Tensor TensorRegion::column_linear_backward(const Tensor& dy, const Tensor& x, const LinearRef& w, WeightWork& work) {
  const Tensor partial_dx =
      ops_.device().empty(dy.rows(), w.weight.columns(), dy.dtype(), MemoryCategory::workspace);
  ops_.linear_backward_input(dy, w.weight, partial_dx);
  work.add_linear(dy, enter(x), w.gradient);
  return enter_backward(partial_dx);
}

Tensor TensorRegion::row_linear_backward(const Tensor& dy, const Tensor& x, const LinearRef& w, WeightWork& work) {
  const Tensor whole = exit_backward(dy);
  const Tensor dx = ops_.device().empty(whole.rows(), w.weight.columns(), whole.dtype(), MemoryCategory::workspace);
  ops_.linear_backward_input(whole, w.weight, dx);
  work.add_linear(whole, x, w.gradient);
  return dx;
}

}  // namespace escalera
