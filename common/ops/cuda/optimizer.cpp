#include "common/ops/checks.h"
#include "common/ops/cuda/cuda_ops.h"
#include "common/ops/cuda/tensor_access.h"

namespace escalera::cuda {

void CudaOps::adamw(const Tensor& master, const Tensor& gradient, const Tensor& first_moment, const Tensor& second_moment,
                    const Tensor& weights, const AdamWSettings& settings) {
  const DType weight_type = check_adamw(master, gradient, first_moment, second_moment, weights, settings);
  dispatch_device(weight_type, "adamw", [&]<class T>() {
    cuda::adamw(raw<float>(master), raw<float>(gradient), raw<float>(first_moment), raw<float>(second_moment),
                raw<T>(weights), master.size(), adamw_factors<float>(settings), stream());
  });
}

void CudaOps::sgd(const Tensor& master, const Tensor& gradient, const Tensor& weights, double learning_rate,
                  double weight_decay, double gradient_scale) {
  dispatch_device(check_sgd(master, gradient, weights), "sgd", [&]<class T>() {
    cuda::sgd(raw<float>(master), raw<float>(gradient), raw<T>(weights), master.size(),
              static_cast<float>(1 - learning_rate * weight_decay), static_cast<float>(learning_rate * gradient_scale),
              stream());
  });
}

}  // namespace escalera::cuda
