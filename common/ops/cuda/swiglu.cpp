#include "common/ops/checks.h"
#include "common/ops/cuda/cuda_ops.h"
#include "common/ops/cuda/tensor_access.h"

namespace escalera::cuda {

void CudaOps::swiglu_forward(const Tensor& gate_up, const Tensor& y) {
  check_swiglu_forward(gate_up, y);
  dispatch_device(y.dtype(), "swiglu_forward", [&]<class T>() {
    cuda::swiglu_forward(raw<T>(gate_up), raw<T>(y), to_int(y.rows()), to_int(y.columns()), stream());
  });
}

void CudaOps::swiglu_backward(const Tensor& gate_up, const Tensor& dy, const Tensor& d_gate_up, const Tensor& y) {
  check_swiglu_backward(gate_up, dy, d_gate_up, y);
  dispatch_device(dy.dtype(), "swiglu_backward", [&]<class T>() {
    cuda::swiglu_backward(raw<T>(gate_up), raw<T>(dy), raw<T>(d_gate_up), raw<T>(y), to_int(dy.rows()),
                          to_int(dy.columns()), stream());
  });
}

}  // namespace escalera::cuda
