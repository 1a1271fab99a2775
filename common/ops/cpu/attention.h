// Attention on the CPU, forward and backward, in blocks that stay in the cache. What is computed is said once, at
// Ops::attention_forward; how, in attention_kernels.h.
// defines: attention_forward(), attention_backward(), attention_description()
#pragma once

#include <string_view>

#include "common/core/tensor.h"
#include "common/core/thread_pool.h"
#include "common/ops/ops.h"

namespace escalera::cpu {

struct AttentionTable;

/// Ops::attention_forward on the threads of `pool`. Scratch (a few blocks per thread) comes from the workspace of `device`
/// and goes back to it. The bits of the result depend on neither the number of threads nor on which of them was faster.
void attention_forward(ThreadPool& pool, Device& device, const AttentionShape& shape, const Tensor& q,
                       const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse);

/// Ops::attention_backward, likewise. Each thread's scratch also holds the gradients of the keys and values of one head in
/// the wide type, so it grows with key_length * head_size.
void attention_backward(ThreadPool& pool, Device& device, const AttentionShape& shape, const Tensor& q,
                        const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                        const Tensor& d_out, const Tensor& dq, const Tensor& dk, const Tensor& dv);

/// The kernels that this processor gets, in a word for the log: "8 lanes" or "16 lanes".
std::string_view attention_description();

/// The same with kernels of one's own choice; tests compare the tables in attention_table.h with each other.
void attention_forward(const AttentionTable& table, ThreadPool& pool, Device& device,
                       const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& out, const Tensor& lse);
void attention_backward(const AttentionTable& table, ThreadPool& pool, Device& device,
                        const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& lse, const Tensor& d_out, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv);

}  // namespace escalera::cpu
