// Attention in float32 for head sizes up to 64.
#include "common/ops/cuda/attention/float_launch.h"

namespace escalera::cuda::attention {

template void launch_float_forward<64>(const AttentionArguments<float>&, cudaStream_t);
template void launch_float_backward<64>(const AttentionArguments<float>&, cudaStream_t);

}  // namespace escalera::cuda::attention
