// The launchers that attention.cu chooses from. Each tile size is compiled in a file of its own (tensor_core_64.cu,
// float_64.cu, ...), because all of them in one would take minutes.
// defines: launch_forward(), launch_backward(), launch_float_forward(), launch_float_backward()
#pragma once

#include "common/ops/cuda/attention/attention_arguments.h"

namespace escalera::cuda::attention {

/// For head sizes up to HEAD_SIZE: 16, 32, 64, 96, 128 or 256.
/// @{
template <int HEAD_SIZE>
void launch_forward(const AttentionArguments<__nv_bfloat16>& arguments, cudaStream_t stream);
/// dq, dk and dv; row_dot has been computed.
template <int HEAD_SIZE>
void launch_backward(const AttentionArguments<__nv_bfloat16>& arguments, cudaStream_t stream);
/// @}

/// The same in float32, for head sizes up to HEAD_SIZE: 64, 128 or 256.
/// @{
template <int HEAD_SIZE>
void launch_float_forward(const AttentionArguments<float>& arguments, cudaStream_t stream);
template <int HEAD_SIZE>
void launch_float_backward(const AttentionArguments<float>& arguments, cudaStream_t stream);
/// @}

}  // namespace escalera::cuda::attention
