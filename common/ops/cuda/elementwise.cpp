#include "common/ops/checks.h"
#include "common/ops/cuda/cuda_ops.h"
#include "common/ops/cuda/tensor_access.h"

namespace escalera::cuda {

void CudaOps::add(const Tensor& a, const Tensor& b, const Tensor& out) {
  check_add(a, b, out);
  dispatch_device(a.dtype(), "add", [&]<class T>() { cuda::add(raw<T>(a), raw<T>(b), raw<T>(out), a.size(), stream()); });
}

void CudaOps::scale(const Tensor& x, double factor) {
  dispatch_device(x.dtype(), "scale",
                  [&]<class T>() { cuda::scale(raw<T>(x), static_cast<float>(factor), x.size(), stream()); });
}

void CudaOps::convert(const Tensor& source, const Tensor& destination) {
  check_convert(source, destination);
  dispatch(source.dtype(), [&]<class From>() {
    dispatch(destination.dtype(), [&]<class To>() {
      if constexpr (std::is_same_v<From, To>) {
        device_.copy(destination.data(), source.data(), source.bytes());
      } else {
        cuda::convert(raw<From>(source), raw<To>(destination), source.size(), stream());
      }
    });
  });
}

void CudaOps::squared_norm(const Tensor& x, const Tensor& sum) {
  check_squared_norm(sum);
  dispatch_device(x.dtype(), "squared_norm", [&]<class T>() {
    cuda::squared_norm(raw<T>(x), x.size(), raw<double>(sum), scratch<double>(squared_norm_scratch(x.size())), stream());
  });
}

}  // namespace escalera::cuda
