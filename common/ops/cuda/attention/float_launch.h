// Launches of the float32 kernels; the files float_<head size>.cu instantiate what is here.
// defines: launch_float_forward(), launch_float_backward()
#pragma once

#include "common/core/cuda/launch.h"
#include "common/ops/cuda/attention/attention_launch.h"
#include "common/ops/cuda/attention/float_kernels.h"

namespace escalera::cuda::attention {

/// Starts a block for each of `order`, with `floats` of shared memory.
inline void launch_float_tiles(void (*kernel)(const AttentionArguments<float>, const BlockOrder),
                               const AttentionArguments<float>& a, const BlockOrder& order, int floats,
                               cudaStream_t stream) {
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(floats);
  allow_shared_memory(kernel, bytes);
  launch(stream, dim3(blocks_of(order)), dim3(float_threads), bytes, kernel, a, order);
}

template <int HEAD_SIZE>
void launch_float_forward(const AttentionArguments<float>& a, cudaStream_t stream) {
  using Shape = FloatShape<HEAD_SIZE>;
  launch_float_tiles(float_forward_kernel<HEAD_SIZE>, a, query_tile_order(a, Shape::rows),
                     float_forward_memory<Shape>, stream);
}

template <int HEAD_SIZE>
void launch_float_backward(const AttentionArguments<float>& a, cudaStream_t stream) {
  using Shape = FloatShape<HEAD_SIZE>;
  launch_float_tiles(float_key_gradient_kernel<HEAD_SIZE>, a, key_tile_order(a, Shape::rows),
                     float_key_gradient_memory<Shape>, stream);
  launch_float_tiles(float_query_gradient_kernel<HEAD_SIZE>, a, query_tile_order(a, Shape::rows),
                     float_query_gradient_memory<Shape>, stream);
}

}  // namespace escalera::cuda::attention
