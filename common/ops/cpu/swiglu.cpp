#include "common/ops/checks.h"
#include "common/ops/cpu/cpu_ops.h"
#include "common/ops/cpu/tensor_access.h"

namespace escalera::cpu {

void CpuOps::swiglu_forward(const Tensor& gate_up, const Tensor& y) {
  const Index rows = y.rows(), columns = y.columns();
  check_swiglu_forward(gate_up, y);
  dispatch(y.dtype(), [&]<class T>() {
    parallel(rows, cost_of_exp * columns, [&](Index begin, Index end, int) {
      table<T>().swiglu_forward(raw<T>(gate_up) + begin * 2 * columns, raw<T>(y) + begin * columns, end - begin, columns);
    });
  });
}

void CpuOps::swiglu_backward(const Tensor& gate_up, const Tensor& dy, const Tensor& d_gate_up, const Tensor& y) {
  const Index rows = dy.rows(), columns = dy.columns();
  check_swiglu_backward(gate_up, dy, d_gate_up, y);
  dispatch(dy.dtype(), [&]<class T>() {
    auto* product = raw<T>(y);
    parallel(rows, cost_of_exp * columns, [&](Index begin, Index end, int) {
      table<T>().swiglu_backward(raw<T>(gate_up) + begin * 2 * columns, raw<T>(dy) + begin * columns,
                                 raw<T>(d_gate_up) + begin * 2 * columns, product ? product + begin * columns : nullptr,
                                 end - begin, columns);
    });
  });
}

}  // namespace escalera::cpu
