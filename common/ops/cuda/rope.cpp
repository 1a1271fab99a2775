#include "common/ops/checks.h"
#include "common/ops/cuda/cuda_ops.h"
#include "common/ops/cuda/tensor_access.h"

namespace escalera::cuda {
namespace {

/// `positions` are in device memory.
RopeCall make_call(Index rows, const RopeHeads& heads, Index head_size, const Tensor& table, const std::int32_t* positions,
                   std::size_t position_count) {
  return {.rows = to_int(rows),
          .heads = to_int(heads.query),
          .kv_heads = to_int(heads.key),
          .head_size = to_int(head_size),
          .table = raw<float>(table),
          .positions = positions,
          .position_count = to_int(static_cast<Index>(position_count))};
}

}  // namespace

void CudaOps::rope_split_forward(const Tensor& qkv, const Tensor& table, std::span<const std::int32_t> positions,
                                 Index head_size, const Tensor& q, const Tensor& k, const Tensor& v) {
  const RopeHeads heads = check_rope(qkv, table, positions, head_size, q, k, v);
  dispatch_device(qkv.dtype(), "rope_split_forward", [&]<class T>() {
    const RopeCall call =
        make_call(qkv.rows(), heads, head_size, table, positions_.on_device(device_, positions), positions.size());
    cuda::rope_split_forward(call, raw<T>(qkv), raw<T>(q), raw<T>(k), raw<T>(v), stream());
  });
}

void CudaOps::rope_merge_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& table,
                                  std::span<const std::int32_t> positions, Index head_size, const Tensor& d_qkv) {
  const RopeHeads heads = check_rope(d_qkv, table, positions, head_size, dq, dk, dv);
  dispatch_device(d_qkv.dtype(), "rope_merge_backward", [&]<class T>() {
    const RopeCall call =
        make_call(d_qkv.rows(), heads, head_size, table, positions_.on_device(device_, positions), positions.size());
    cuda::rope_merge_backward(call, raw<T>(dq), raw<T>(dk), raw<T>(dv), raw<T>(d_qkv), stream());
  });
}

}  // namespace escalera::cuda
