// Flash attention on the GPU: softmax(q k^T / sqrt(head_size)) v and its gradients without ever storing a score, so that
// memory is linear in the lengths (Dao et al. 2022; Dao 2023). bfloat16 runs on tensor cores, float32 on the ordinary ones.
// defines: AttentionProblem, largest_head_size, attention_supports(), attention_forward(), attention_backward()
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace escalera::cuda {

/// The sizes of one call; what they mean is said at AttentionShape in common/ops/ops.h.
struct AttentionProblem {
  int batch, query_length, key_length, heads, kv_heads, head_size;
  long long query_offset, key_offset;
  bool causal;
};

/// The most columns of a head.
inline constexpr int largest_head_size = 256;

/// Head sizes from 1 to largest_head_size. 16, 32, 64, 96 and 128 have kernels of their own; others are padded with zeros,
/// inside the kernel, to the next one of 16, 32, 64, 96, 128 and 256, and take as long as that. float32: to one of 64, 128
/// and 256.
bool attention_supports(int head_size);

/// Writes out [batch * query_length, heads * head_size] and lse [batch * query_length, heads]: the natural logarithm of the
/// sum of the exponentials of a query's scaled scores; -infinity, and out = 0, for a query that sees no key. All tensors are
/// contiguous. Where their addresses or the head size are not multiples of 16 bytes, copies are narrower and slower.
/// @{
void attention_forward(const AttentionProblem& problem, const __nv_bfloat16* q, const __nv_bfloat16* k,
                       const __nv_bfloat16* v, __nv_bfloat16* out, float* lse, cudaStream_t stream);
void attention_forward(const AttentionProblem& problem, const float* q, const float* k, const float* v,
                       float* out, float* lse, cudaStream_t stream);
/// @}

/// Writes dq, dk and dv; the same inputs give the same bits. `out` and `lse` may belong to more keys than this call has: the
/// gradients are then the share of these keys, as ring attention needs. `row_dot` is scratch for
/// batch * query_length * heads floats.
/// @{
void attention_backward(const AttentionProblem& problem, const __nv_bfloat16* q, const __nv_bfloat16* k,
                        const __nv_bfloat16* v, const __nv_bfloat16* out, const float* lse,
                        const __nv_bfloat16* d_out, float* row_dot, __nv_bfloat16* dq, __nv_bfloat16* dk,
                        __nv_bfloat16* dv, cudaStream_t stream);
void attention_backward(const AttentionProblem& problem, const float* q, const float* k, const float* v,
                        const float* out, const float* lse, const float* d_out, float* row_dot, float* dq,
                        float* dk, float* dv, cudaStream_t stream);
/// @}

}  // namespace escalera::cuda
