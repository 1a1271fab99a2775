#include "common/ops/checks.h"
#include "common/ops/cuda/cuda_ops.h"
#include "common/ops/cuda/tensor_access.h"

namespace escalera::cuda {

void CudaOps::embedding_forward(std::span<const std::int32_t> tokens, const Tensor& table, Index first_row,
                                const Tensor& y) {
  check_embedding_forward(tokens, table, y);
  dispatch_device(y.dtype(), "embedding_forward", [&]<class T>() {
    const std::int32_t* uploaded = device_.upload(tokens);
    cuda::embedding_forward(uploaded, raw<T>(table), to_int(first_row), to_int(table.rows()), raw<T>(y), to_int(y.rows()),
                            to_int(y.columns()), stream());
  });
}

void CudaOps::embedding_backward(std::span<const std::int32_t> tokens, const Tensor& dy, Index first_row,
                                 const Tensor& d_table) {
  check_embedding_backward(tokens, dy, d_table);
  dispatch_device(dy.dtype(), "embedding_backward", [&]<class T>() {
    embedding_plan_.make(tokens, first_row, d_table.rows());
    const std::int32_t* uploaded = device_.upload(embedding_plan_.data());
    const Index columns = d_table.columns();
    cuda::embedding_backward(raw<T>(dy), embedding_plan_.order_at(uploaded), embedding_plan_.segments_at(uploaded),
                             embedding_plan_.segments(), embedding_plan_.totals_at(uploaded), embedding_plan_.totals(),
                             raw<float>(d_table), scratch<float>(embedding_plan_.slots() * columns), to_int(columns),
                             stream());
  });
}

}  // namespace escalera::cuda
