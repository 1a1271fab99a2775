// Checks an attention call, cuts it into parts and shares them out.
#include "common/ops/cpu/attention.h"

#include <algorithm>
#include <atomic>

#include "common/ops/checks.h"
#include "common/ops/cpu/attention_table.h"
#include "common/ops/cpu/kernels.h"

namespace escalera::cpu {
namespace {

Index blocks(Index length, Index block) {
  return (length + block - 1) / block;
}

const AttentionKernels& kernels_for(const AttentionTable& table, DType dtype) {
  switch (dtype) {
    case DType::float32:
      return table.float32;
    case DType::bfloat16:
      return table.bfloat16;
    case DType::float64:
      return table.float64.forward ? table.float64 : attention_table_base().float64;
  }
  fail("unknown element type");
}

const AttentionTable& best_table() {
  const AttentionTable* wide = cpu_has_v4() ? attention_table_v4() : nullptr;
  return wide ? *wide : attention_table_base();
}

/// The call in plain data, after a check of everything that forward and backward have in common.
AttentionCall make_call(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& lse) {
  check_attention(shape, q, k, v, out, lse);
  AttentionCall call;
  call.query_length = shape.query_length;
  call.key_length = shape.key_length;
  call.heads = shape.heads;
  call.kv_heads = shape.kv_heads;
  call.head_size = shape.head_size;
  call.query_offset = shape.query_offset;
  call.key_offset = shape.key_offset;
  call.causal = shape.causal;
  call.q = q.data();
  call.k = k.data();
  call.v = v.data();
  call.out = out.data();
  call.lse = lse.data();
  return call;
}

/// Calls body(item, scratch) for every item of [0, count), each on whichever thread is free: items differ in cost by far,
/// under a causal mask. That is safe for the bits of the result, since no item adds to what another one writes.
template <class Body>
void share_out(ThreadPool& pool, Device& device, Index count, Index scratch_bytes, const Body& body) {
  if (count == 0) return;
  const Index stride = blocks(scratch_bytes, 256) * 256;
  const Index bytes = stride * pool.size();
  const Tensor scratch =
      device.empty(1, bytes / size_of(DType::float32), DType::float32, MemoryCategory::workspace);
  auto* memory = static_cast<std::byte*>(scratch.data());
  std::atomic<Index> next = 0;
  pool.run([&](int thread) {
    for (Index item = next++; item < count; item = next++) body(item, memory + thread * stride);
  });
}

}  // namespace

void attention_forward(const AttentionTable& table, ThreadPool& pool, Device& device,
                       const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& out, const Tensor& lse) {
  const AttentionCall call = make_call(shape, q, k, v, out, lse);
  const AttentionKernels& kernels = kernels_for(table, q.dtype());
  const Index rows = shape.query_length * (shape.heads / shape.kv_heads);
  const Index row_blocks = blocks(rows, attention_row_block);
  const Index heads = shape.batch * shape.kv_heads;
  share_out(pool, device, heads * row_blocks, kernels.forward_scratch(shape.head_size),
            [&](Index item, void* scratch) {
              AttentionPart part;
              part.batch = item / row_blocks / shape.kv_heads;
              part.kv_head = item / row_blocks % shape.kv_heads;
              // The last rows see most keys and come first, so that the threads finish at about the same time.
              part.row_begin = (row_blocks - 1 - item % row_blocks) * attention_row_block;
              part.row_end = std::min(rows, part.row_begin + attention_row_block);
              part.key_end = shape.key_length;
              kernels.forward(call, part, scratch);
            });
}

void attention_backward(const AttentionTable& table, ThreadPool& pool, Device& device,
                        const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& lse, const Tensor& d_out, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv) {
  AttentionCall call = make_call(shape, q, k, v, out, lse);
  check_attention_gradients(q, k, v, d_out, dq, dk, dv);
  call.d_out = d_out.data();
  call.dq = dq.data();
  call.dk = dk.data();
  call.dv = dv.data();
  const AttentionKernels& kernels = kernels_for(table, q.dtype());
  const Index rows = shape.query_length * (shape.heads / shape.kv_heads);
  const Index heads = shape.batch * shape.kv_heads;
  const auto part_of_head = [&](Index head) {
    AttentionPart part;
    part.batch = head / shape.kv_heads;
    part.kv_head = head % shape.kv_heads;
    part.row_end = rows;
    part.key_end = shape.key_length;
    return part;
  };

  // A thread that treats all rows and keys of a head together forms five products per block. Two passes, one for dq by
  // blocks of rows and one for dk and dv by blocks of keys, form seven, but keep any number of threads busy. Every sum is
  // taken in the same order either way, so the choice does not show in the results.
  const Index rounds = blocks(heads, pool.size());
  if (rounds * pool.size() * 5 <= heads * 7) {
    share_out(
        pool, device, heads, kernels.backward_scratch(shape.head_size, shape.key_length),
        [&](Index head, void* scratch) { kernels.backward(call, part_of_head(head), true, true, scratch); });
    return;
  }
  const Index row_blocks = blocks(rows, attention_row_block);
  const Index key_blocks = blocks(shape.key_length, attention_key_block);
  share_out(pool, device, heads * (row_blocks + key_blocks),
            kernels.backward_scratch(shape.head_size, attention_key_block), [&](Index item, void* scratch) {
              AttentionPart part = part_of_head(item / (row_blocks + key_blocks));
              const Index block = item % (row_blocks + key_blocks);
              if (block < row_blocks) {
                part.row_begin = (row_blocks - 1 - block) * attention_row_block;
                part.row_end = std::min(rows, part.row_begin + attention_row_block);
                kernels.backward(call, part, true, false, scratch);
              } else {
                part.key_begin = (block - row_blocks) * attention_key_block;
                part.key_end = std::min(shape.key_length, part.key_begin + attention_key_block);
                kernels.backward(call, part, false, true, scratch);
              }
            });
}

void attention_forward(ThreadPool& pool, Device& device, const AttentionShape& shape, const Tensor& q,
                       const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse) {
  attention_forward(best_table(), pool, device, shape, q, k, v, out, lse);
}

void attention_backward(ThreadPool& pool, Device& device, const AttentionShape& shape, const Tensor& q,
                        const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                        const Tensor& d_out, const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  attention_backward(best_table(), pool, device, shape, q, k, v, out, lse, d_out, dq, dk, dv);
}

std::string_view attention_description() {
  return best_table().name;
}

}  // namespace escalera::cpu
