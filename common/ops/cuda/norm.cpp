#include "common/ops/checks.h"
#include "common/ops/cuda/cuda_ops.h"
#include "common/ops/cuda/tensor_access.h"

namespace escalera::cuda {

void CudaOps::rms_norm_forward(const Tensor& x, const Tensor& w, double epsilon, const Tensor& y, const Tensor& rstd) {
  add_rms_norm_forward(x, Tensor(), w, epsilon, Tensor(), y, rstd);
}

void CudaOps::add_rms_norm_forward(const Tensor& x, const Tensor& delta, const Tensor& w, double epsilon, const Tensor& sum,
                                   const Tensor& y, const Tensor& rstd) {
  check_rms_norm(x, w, y, rstd);
  if (!delta.empty()) check_add_rms_norm(x, delta, sum);
  dispatch_device(x.dtype(), "rms_norm_forward", [&]<class T>() {
    cuda::rms_norm_forward(raw<T>(x), raw<T>(delta), raw<T>(w), static_cast<float>(epsilon), raw<T>(sum), raw<T>(y),
                           raw<float>(rstd), to_int(x.rows()), to_int(x.columns()), stream());
  });
}

void CudaOps::rms_norm_apply(const Tensor& x, const Tensor& rstd, const Tensor& w, const Tensor& y) {
  check_rms_norm(x, w, y, rstd);
  dispatch_device(x.dtype(), "rms_norm_apply", [&]<class T>() {
    cuda::rms_norm_apply(raw<T>(x), raw<float>(rstd), raw<T>(w), raw<T>(y), to_int(x.rows()), to_int(x.columns()),
                         stream());
  });
}

void CudaOps::rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& w,
                                const Tensor& residual, const Tensor& dx, const Tensor& dw) {
  check_rms_norm(x, w, dy, rstd);
  check_rms_norm_backward(x, residual, dx, dw);
  dispatch_device(x.dtype(), "rms_norm_backward", [&]<class T>() {
    const int rows = to_int(x.rows()), columns = to_int(x.columns());
    cuda::rms_norm_backward(raw<T>(dy), raw<T>(x), raw<float>(rstd), raw<T>(w), raw<T>(residual), raw<T>(dx),
                            raw<float>(dw), rows, columns, scratch<float>(rms_norm_backward_scratch(rows, columns)),
                            stream());
  });
}

}  // namespace escalera::cuda
