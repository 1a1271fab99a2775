// Tensor-core attention for head sizes up to 256.
#include "common/ops/cuda/attention/tensor_core_launch.h"

namespace escalera::cuda::attention {

template void launch_forward<256>(const AttentionArguments<__nv_bfloat16>&, cudaStream_t);
template void launch_backward<256>(const AttentionArguments<__nv_bfloat16>&, cudaStream_t);

}  // namespace escalera::cuda::attention
