// What an attention kernel is told, and how a block finds its part of the work in it.
// defines: AttentionArguments, visible_keys(), head_begin(), row_begin(), BlockOrder, BlockPlace,
//          place_of_block(), query_tile_order(), key_tile_order(), blocks_of()
//
// Letters in the comments of the kernels, which follow Dao et al. 2022 (algorithms 1 and 4) and Dao 2023:
//   S = q k^T / sqrt(head_size)     scores [queries, keys], never stored
//   P = exp(S - lse)                probabilities; 0 where a query does not see a key
//   D = rowsum(d_out * out)         "row dot": what the derivative of softmax subtracts from every dP of a row
//   dP = d_out v^T,  dS = P (dP - D)
//   out = P v,  dv = P^T d_out,  dq = dS k / sqrt(head_size),  dk = dS^T q / sqrt(head_size)
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <climits>

#include "common/core/cuda/cuda_check.h"

namespace escalera::cuda::attention {

/// One call. Pointers and layouts as in attention.h; those that a kernel does not use are null.
template <class Element>
struct AttentionArguments {
  int batch, query_length, key_length, heads, kv_heads, head_size;
  /// Query i sees key j if j <= i + diagonal. The offsets of the problem, and whether it is causal at all, are in here.
  int diagonal;
  float scale;  ///< 1 / sqrt(head_size)
  /// scale * log2(e): exp(scale * x) = 2^(scale_log2 * x), and powers of 2 are what the hardware computes.
  float scale_log2;
  int copy_bytes;  ///< 16, 4 or the size of an element: what every row of every tensor is aligned to
  const Element *q, *k, *v, *out, *d_out;
  const float* lse;
  const float* row_dot;  ///< D [batch, heads, query_length]
  Element *out_written, *dq, *dk, *dv;
  float* lse_written;
};

/// How many keys query `query` sees: the first ones.
template <class Element>
__device__ __forceinline__ int visible_keys(const AttentionArguments<Element>& a, int query) {
  return max(0, min(a.key_length, query + a.diagonal + 1));
}

/// The element of a tensor [batch * length, heads * head_size] at which one head's row `row` begins; its next row begins
/// heads * head_size elements later.
__device__ __forceinline__ long long head_begin(int batch, int length, int row, int heads, int head,
                                                int head_size) {
  return ((static_cast<long long>(batch) * length + row) * heads + head) * head_size;
}

/// How many elements later row `row` begins.
__device__ __forceinline__ long long row_begin(int row, int row_stride) {
  return static_cast<long long>(row) * row_stride;
}

// ---- which block does what ----------------------------------------------------------------------------------------

// Blocks start in the order of their numbers. Those that run at the same time should read the same keys and values, so that
// these come out of the L2 cache; and of a causal problem the tiles with the longest loops should start first, so that the
// short ones fill the gaps at the end. So the heads are cut into sections that fit into the cache; within a section the
// first tile of every head comes first, then every second tile, and so on.

/// The order of a launch; see make_block_order().
struct BlockOrder {
  int heads;          ///< of all sequences of the batch together
  int section_heads;  ///< heads of a section; the last one may have fewer
  int tiles;          ///< blocks of each head
};

/// `tile` counts from the one that starts first.
struct BlockPlace {
  int batch, head, tile;
};

/// The place of this block; `heads` is the number of heads of one sequence.
__device__ __forceinline__ BlockPlace place_of_block(const BlockOrder& order, int heads) {
  const int block = static_cast<int>(blockIdx.x), section_blocks = order.section_heads * order.tiles;
  const int section = block / section_blocks, rest = block % section_blocks;
  const int section_begin = section * order.section_heads;
  const int section_heads = min(order.section_heads, order.heads - section_begin);
  const int head = section_begin + rest % section_heads;
  return {head / heads, head % heads, rest / section_heads};
}

/// Blocks for `batch` sequences of `heads` heads, each a tile of `tile_length` out of `length`. A block reads
/// `streamed_bytes` that the other blocks of its head read too.
inline BlockOrder make_block_order(int batch, int heads, int length, int tile_length,
                                   long long streamed_bytes) {
  constexpr long long cache_share =
      16 << 20;  // an A100 has 40 MB of L2 cache, an H100 50 MB, both in two halves
  const long long all_heads = static_cast<long long>(batch) * heads;
  const long long fitting = std::max(1LL, cache_share / std::max(1LL, streamed_bytes));
  BlockOrder order;
  order.heads = static_cast<int>(all_heads);
  order.section_heads = static_cast<int>(std::min(fitting, all_heads));
  order.tiles = (length + tile_length - 1) / tile_length;
  return order;
}

/// For kernels with a block per tile of queries; it reads the keys and values of its head.
template <class Element>
BlockOrder query_tile_order(const AttentionArguments<Element>& a, int tile_queries) {
  const long long bytes = 2 * static_cast<long long>(sizeof(Element)) * a.key_length * a.head_size;
  return make_block_order(a.batch, a.heads, a.query_length, tile_queries, bytes * a.kv_heads / a.heads);
}

/// For kernels with a block per tile of keys; it reads q and d_out of the heads of its group.
template <class Element>
BlockOrder key_tile_order(const AttentionArguments<Element>& a, int tile_keys) {
  const long long bytes = 2 * static_cast<long long>(sizeof(Element)) * a.query_length * a.head_size;
  return make_block_order(a.batch, a.kv_heads, a.key_length, tile_keys, bytes * a.heads / a.kv_heads);
}

/// All blocks of the launch; place_of_block() counts them in an int.
inline unsigned blocks_of(const BlockOrder& order) {
  const long long blocks = static_cast<long long>(order.heads) * order.tiles;
  CUDA_CHECK(blocks <= INT_MAX ? cudaSuccess : cudaErrorInvalidConfiguration);
  return static_cast<unsigned>(blocks);
}

}  // namespace escalera::cuda::attention
