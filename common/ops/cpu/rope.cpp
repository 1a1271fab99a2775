#include "common/ops/checks.h"
#include "common/ops/cpu/cpu_ops.h"
#include "common/ops/cpu/tensor_access.h"

namespace escalera::cpu {

void CpuOps::rope_split_forward(const Tensor& qkv, const Tensor& table, std::span<const std::int32_t> positions,
                                Index head_size, const Tensor& q, const Tensor& k, const Tensor& v) {
  const RopeHeads heads = check_rope(qkv, table, positions, head_size, q, k, v);
  dispatch(qkv.dtype(), [&]<class T>() {
    parallel(qkv.rows(), qkv.columns(), [&](Index begin, Index end, int) {
      for (Index t = begin; t < end; t++) {
        const Index position = positions[static_cast<std::size_t>(t) % positions.size()];
        this->table<T>().rope_split(raw<T>(qkv) + t * qkv.columns(), raw<Accumulator<T>>(table) + position * head_size,
                                    raw<T>(q) + t * q.columns(), raw<T>(k) + t * k.columns(),
                                    raw<T>(v) + t * v.columns(), heads.query, heads.key, head_size);
      }
    });
  });
}

void CpuOps::rope_merge_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& table,
                                 std::span<const std::int32_t> positions, Index head_size, const Tensor& d_qkv) {
  const RopeHeads heads = check_rope(d_qkv, table, positions, head_size, dq, dk, dv);
  dispatch(d_qkv.dtype(), [&]<class T>() {
    parallel(d_qkv.rows(), d_qkv.columns(), [&](Index begin, Index end, int) {
      for (Index t = begin; t < end; t++) {
        const Index position = positions[static_cast<std::size_t>(t) % positions.size()];
        this->table<T>().rope_merge(raw<T>(dq) + t * dq.columns(), raw<T>(dk) + t * dk.columns(),
                                    raw<T>(dv) + t * dv.columns(), raw<Accumulator<T>>(table) + position * head_size,
                                    raw<T>(d_qkv) + t * d_qkv.columns(), heads.query, heads.key, head_size);
      }
    });
  });
}

}  // namespace escalera::cpu
