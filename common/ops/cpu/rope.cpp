#include "common/ops/cpu/cpu_ops.h"
#include "common/ops/cpu/tensor_access.h"

namespace escalera::cpu {
namespace {

/// How many heads q and k have; checks the shapes that both directions share.
struct Heads {
  Index query, key;

  Heads(const Tensor& qkv, const Tensor& table, std::span<const std::int32_t> positions, Index head_size, const Tensor& q,
        const Tensor& k, const Tensor& v)
      : query(q.columns() / head_size), key(k.columns() / head_size) {
    const Index rows = qkv.rows();
    require(head_size % 2 == 0, "the rotary embedding needs an even head size, not {}", head_size);
    check(q, rows, query * head_size, qkv.dtype(), "rope: q");
    check(k, rows, key * head_size, qkv.dtype(), "rope: k");
    check(v, rows, key * head_size, qkv.dtype(), "rope: v");
    check(qkv, rows, (query + 2 * key) * head_size, qkv.dtype(), "rope: qkv");
    check(table, table.rows(), head_size, accumulation_dtype(qkv.dtype()), "rope: table");
    require(!positions.empty() || rows == 0, "rope: no positions for {} rows", rows);
    for (const std::int32_t position : positions) {
      require(position >= 0 && position < table.rows(), "rope: position {} in a table of {}", position, table.rows());
    }
  }
};

}  // namespace

void CpuOps::rope_split_forward(const Tensor& qkv, const Tensor& table, std::span<const std::int32_t> positions,
                                Index head_size, const Tensor& q, const Tensor& k, const Tensor& v) {
  const Heads heads(qkv, table, positions, head_size, q, k, v);
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
  const Heads heads(d_qkv, table, positions, head_size, dq, dk, dv);
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
