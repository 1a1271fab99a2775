#include "common/ops/checks.h"
#include "common/ops/cuda/cuda_ops.h"
#include "common/ops/cuda/tensor_access.h"

namespace escalera::cuda {
namespace {

LogitShape shape_of(const Tensor& logits, Index valid_columns, Index first_column) {
  return {.rows = to_int(logits.rows()),
          .columns = to_int(logits.columns()),
          .valid = to_int(valid_columns),
          .first = to_int(first_column)};
}

}  // namespace

void CudaOps::cross_entropy_row_max(const Tensor& logits, Index valid_columns, const Tensor& row_max) {
  check_cross_entropy_row_max(logits, valid_columns, row_max);
  dispatch_device(logits.dtype(), "cross_entropy_row_max", [&]<class T>() {
    cuda::cross_entropy_row_max(shape_of(logits, valid_columns, 0), raw<T>(logits), raw<float>(row_max), stream());
  });
}

void CudaOps::cross_entropy_row_sums(const Tensor& logits, Index valid_columns, std::span<const std::int32_t> targets,
                                     Index first_column, const Tensor& row_max, const Tensor& sums) {
  check_cross_entropy_row_sums(logits, valid_columns, targets, row_max, sums);
  dispatch_device(logits.dtype(), "cross_entropy_row_sums", [&]<class T>() {
    cuda::cross_entropy_row_sums(shape_of(logits, valid_columns, first_column), raw<T>(logits),
                                 targets_.on_device(device_, targets), raw<float>(row_max), raw<float>(sums), stream());
  });
}

void CudaOps::cross_entropy_backward(const Tensor& logits, Index valid_columns, std::span<const std::int32_t> targets,
                                     Index first_column, const Tensor& row_max, const Tensor& sums, double scale,
                                     double loss_share, const Tensor& loss) {
  check_cross_entropy_backward(logits, valid_columns, targets, row_max, sums, loss);
  dispatch_device(logits.dtype(), "cross_entropy_backward", [&]<class T>() {
    const LogitShape shape = shape_of(logits, valid_columns, first_column);
    const std::int32_t* uploaded = targets_.on_device(device_, targets);
    cuda::cross_entropy_gradient(shape, raw<T>(logits), uploaded, raw<float>(row_max), raw<float>(sums),
                                 static_cast<float>(scale), stream());
    cuda::cross_entropy_loss(uploaded, raw<float>(sums), shape.rows, scale * loss_share, raw<double>(loss),
                             scratch<double>(cross_entropy_loss_scratch(shape.rows)), stream());
  });
}

}  // namespace escalera::cuda
