// Launches of the tensor-core kernels; the files tensor_core_<head size>.cu instantiate what is here.
// defines: launch_forward(), launch_backward()
#pragma once

#include "common/core/cuda/launch.h"
#include "common/ops/cuda/attention/attention_launch.h"
#include "common/ops/cuda/attention/tensor_core_backward.h"
#include "common/ops/cuda/attention/tensor_core_forward.h"

namespace escalera::cuda::attention {

/// Whether the kernels that know their head size and copy 16 bytes everywhere can be used. There are none of 256.
template <int HEAD_SIZE>
bool is_native(const AttentionArguments<bf16>& a) {
  return HEAD_SIZE <= 128 && a.head_size == HEAD_SIZE && a.copy_bytes == 16;
}

/// Starts a block for each of `order`, with tiles of `rows` rows in shared memory and `floats` numbers beside them.
template <int HEAD_SIZE>
void launch_tiles(void (*kernel)(const AttentionArguments<bf16>, const BlockOrder),
                  const AttentionArguments<bf16>& a, const BlockOrder& order, int rows, int floats,
                  cudaStream_t stream) {
  const std::size_t bytes = sizeof(bf16) * HEAD_SIZE * static_cast<std::size_t>(rows) +
                            sizeof(float) * static_cast<std::size_t>(floats);
  allow_shared_memory(kernel, bytes);
  launch(stream, dim3(blocks_of(order)), dim3(threads_of_block), bytes, kernel, a, order);
}

template <int HEAD_SIZE>
void launch_forward(const AttentionArguments<bf16>& a, cudaStream_t stream) {
  using Shape = ForwardTile<HEAD_SIZE>;
  constexpr int tile_queries = warps_of_block * Shape::M16 * 16;
  auto kernel = forward_kernel<HEAD_SIZE, false>;
  if constexpr (HEAD_SIZE <= 128) {
    if (is_native<HEAD_SIZE>(a)) kernel = forward_kernel<HEAD_SIZE, true>;
  }
  launch_tiles<HEAD_SIZE>(kernel, a, query_tile_order(a, tile_queries), tile_queries + 2 * Shape::keys, 0,
                          stream);
}

template <int HEAD_SIZE, KeyGradients GRADIENTS>
void launch_key_gradient(const AttentionArguments<bf16>& a, cudaStream_t stream) {
  using Shape = KeyGradientTile<HEAD_SIZE>;
  constexpr int tile_keys = warps_of_block * Shape::M16 * 16;
  auto kernel = key_gradient_kernel<HEAD_SIZE, false, GRADIENTS>;
  if constexpr (HEAD_SIZE <= 128) {
    if (is_native<HEAD_SIZE>(a)) kernel = key_gradient_kernel<HEAD_SIZE, true, GRADIENTS>;
  }
  launch_tiles<HEAD_SIZE>(kernel, a, key_tile_order(a, tile_keys), 2 * tile_keys + 4 * Shape::queries,
                          4 * Shape::queries, stream);
}

template <int HEAD_SIZE>
void launch_backward(const AttentionArguments<bf16>& a, cudaStream_t stream) {
  if constexpr (HEAD_SIZE <= 128) {
    launch_key_gradient<HEAD_SIZE, KeyGradients::both>(a, stream);
  } else {
    launch_key_gradient<HEAD_SIZE, KeyGradients::only_dk>(a, stream);
    launch_key_gradient<HEAD_SIZE, KeyGradients::only_dv>(a, stream);
  }
  using Shape = QueryGradientTile<HEAD_SIZE>;
  constexpr int tile_queries = warps_of_block * Shape::M16 * 16;
  auto kernel = query_gradient_kernel<HEAD_SIZE, false>;
  if constexpr (HEAD_SIZE <= 128) {
    if (is_native<HEAD_SIZE>(a)) kernel = query_gradient_kernel<HEAD_SIZE, true>;
  }
  launch_tiles<HEAD_SIZE>(kernel, a, query_tile_order(a, tile_queries), 2 * tile_queries + 2 * Shape::keys, 0,
                          stream);
}

}  // namespace escalera::cuda::attention
