#include "common/ops/cuda/attention/attention.h"

#include "common/ops/checks.h"
#include "common/ops/cuda/cuda_ops.h"
#include "common/ops/cuda/tensor_access.h"

namespace escalera::cuda {
namespace {

AttentionProblem problem_of(const AttentionShape& shape) {
  const AttentionProblem problem{.batch = to_int(shape.batch),
                                 .query_length = to_int(shape.query_length),
                                 .key_length = to_int(shape.key_length),
                                 .heads = to_int(shape.heads),
                                 .kv_heads = to_int(shape.kv_heads),
                                 .head_size = to_int(shape.head_size),
                                 .query_offset = shape.query_offset,
                                 .key_offset = shape.key_offset,
                                 .causal = shape.causal};
  require(attention_supports(problem.head_size), "attention: the CUDA backend has no kernel for heads of {} columns",
          problem.head_size);
  return problem;
}

}  // namespace

void CudaOps::attention_forward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& out, const Tensor& lse) {
  check_attention(shape, q, k, v, out, lse);
  dispatch_device(q.dtype(), "attention_forward", [&]<class T>() {
    cuda::attention_forward(problem_of(shape), raw<T>(q), raw<T>(k), raw<T>(v), raw<T>(out), raw<float>(lse), stream());
  });
}

void CudaOps::attention_backward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Tensor& out, const Tensor& lse, const Tensor& d_out, const Tensor& dq,
                                 const Tensor& dk, const Tensor& dv) {
  check_attention(shape, q, k, v, out, lse);
  check_attention_gradients(q, k, v, d_out, dq, dk, dv);
  dispatch_device(q.dtype(), "attention_backward", [&]<class T>() {
    cuda::attention_backward(problem_of(shape), raw<T>(q), raw<T>(k), raw<T>(v), raw<T>(out), raw<float>(lse),
                             raw<T>(d_out), scratch<float>(lse.size()), raw<T>(dq), raw<T>(dk), raw<T>(dv), stream());
  });
}

}  // namespace escalera::cuda
