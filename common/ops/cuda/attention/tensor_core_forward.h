// Attention forward on tensor cores (Dao 2023, algorithm 1).
// defines: ForwardTile, forward_kernel()
#pragma once

#include "common/ops/cuda/attention/attention_arguments.h"
#include "common/ops/cuda/attention/tensor_core_tiles.h"

namespace escalera::cuda::attention {

/// M16 * 16 queries per warp, `keys` keys at a time, and for how many blocks on a multiprocessor the registers should
/// suffice. The more rows a warp has, the more often it uses what it loads from shared memory.
template <int HEAD_SIZE>
struct ForwardTile;
template <>
struct ForwardTile<16> {
  static constexpr int M16 = 2, keys = 64, blocks = 3;
};
template <>
struct ForwardTile<32> {
  static constexpr int M16 = 2, keys = 64, blocks = 3;
};
template <>
struct ForwardTile<64> {
  static constexpr int M16 = 2, keys = 64, blocks = 2;
};
template <>
struct ForwardTile<96> {
  static constexpr int M16 = 2, keys = 32, blocks = 2;
};
template <>
struct ForwardTile<128> {
  static constexpr int M16 = 2, keys = 32, blocks = 2;
};
template <>
struct ForwardTile<256> {
  static constexpr int M16 = 1, keys = 32, blocks = 2;
};

/// Scores that do not count become -infinity: keys that a query does not see, and those behind the last one.
template <int M16, int N8>
__device__ __forceinline__ void mask_scores(float (&score)[M16][N8][4], const WarpMask& mask, int first_key,
                                            const LanePosition& at) {
#pragma unroll
  for (int m = 0; m < M16; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int last_column = mask.last_key(m * 16 + at.row + 8 * h) - first_key - at.column;
#pragma unroll
      for (int n = 0; n < N8; ++n) {
        if (n * 8 > last_column) score[m][n][2 * h] = -INFINITY;
        if (n * 8 + 1 > last_column) score[m][n][2 * h + 1] = -INFINITY;
      }
    }
  }
}

/// One block computes out [queries, head_size] and lse [queries] for a tile of queries of one head. Equivalent to
///   for each query i of the tile:
///     for each key j that i sees:  s[j] = scale * dot(q[i], k[j])
///     lse[i] = log(sum over j of exp(s[j]))
///     out[i] = sum over j of exp(s[j] - lse[i]) * v[j]
/// with the keys taken a tile at a time. Of each row the largest score so far, m, and the sum of exp(s - m) are kept; when a
/// tile brings a larger m, the sum and out shrink to match. A row belongs to four neighbouring lanes. Keys and values have
/// one buffer each: values arrive while the scores are computed, the next keys during the softmax and the product with the
/// values.
template <int HEAD_SIZE, bool NATIVE>
__global__ void __launch_bounds__(threads_of_block, blocks_for<ForwardTile<HEAD_SIZE>, NATIVE>)
    forward_kernel(const AttentionArguments<bf16> a, const BlockOrder order) {
  constexpr int M16 = ForwardTile<HEAD_SIZE>::M16, N8 = ForwardTile<HEAD_SIZE>::keys / 8;
  constexpr int warp_queries = M16 * 16, tile_queries = warps_of_block * warp_queries, tile_keys = N8 * 8;
  DYNAMIC_SHARED(shared);
  bf16* const q_tile = reinterpret_cast<bf16*>(shared);    // [tile_queries][HEAD_SIZE]
  bf16* const k_tile = q_tile + tile_queries * HEAD_SIZE;  // [tile_keys][HEAD_SIZE]
  bf16* const v_tile = k_tile + tile_keys * HEAD_SIZE;     // [tile_keys][HEAD_SIZE]

  const LanePosition at;
  const FragmentOffsets<HEAD_SIZE> offsets;
  const Columns columns{a.head_size, a.copy_bytes};
  const int head_size = NATIVE ? HEAD_SIZE : a.head_size;
  const int q_stride = a.heads * head_size, k_stride = a.kv_heads * head_size;
  const BlockPlace place = place_of_block(order, a.heads);
  const int first_query = (order.tiles - 1 - place.tile) * tile_queries;  // the last queries see most keys
  const int warp_query = first_query + at.warp * warp_queries;
  const int kv_head = place.head / (a.heads / a.kv_heads);
  const long long q_begin =
      head_begin(place.batch, a.query_length, first_query, a.heads, place.head, head_size);
  const long long k_begin = head_begin(place.batch, a.key_length, 0, a.kv_heads, kv_head, head_size);
  bf16* const own_q_tile = q_tile + at.warp * warp_queries * HEAD_SIZE;

  const int keys = visible_keys(a, min(first_query + tile_queries, a.query_length) - 1);
  const WarpMask mask(a, warp_query, warp_queries);
  float out[M16][HEAD_SIZE / 8][4], largest[M16][2], sum[M16][2];
  set_zero(out);
#pragma unroll
  for (int m = 0; m < M16; ++m) {
    largest[m][0] = largest[m][1] = -INFINITY;
    sum[m][0] = sum[m][1] = 0.f;
  }

  if (keys > 0) {
    load_tile<HEAD_SIZE, tile_queries, NATIVE>(q_tile, a.q + q_begin, q_stride, a.query_length - first_query,
                                               columns);
    load_tile<HEAD_SIZE, tile_keys, NATIVE>(k_tile, a.k + k_begin, k_stride, a.key_length, columns);
    commit_copies();
  }
  for (int first_key = 0; first_key < keys; first_key += tile_keys) {
    wait_copies<0>();
    __syncthreads();  // the keys (and queries) are there; no warp needs the previous values any more
    load_tile<HEAD_SIZE, tile_keys, NATIVE>(v_tile, a.v + k_begin + row_begin(first_key, k_stride), k_stride,
                                            a.key_length - first_key, columns);
    commit_copies();

    float score[M16][N8][4];
    set_zero(score);
    if (mask.sees(first_key)) add_rows_times_rows<HEAD_SIZE>(score, own_q_tile, k_tile, offsets);

    wait_copies<0>();
    __syncthreads();  // the values are there; no warp needs the keys any more
    if (first_key + tile_keys < keys) {
      const int next_key = first_key + tile_keys;
      load_tile<HEAD_SIZE, tile_keys, NATIVE>(k_tile, a.k + k_begin + row_begin(next_key, k_stride), k_stride,
                                              a.key_length - next_key, columns);
      commit_copies();
    }

    if (!mask.sees(first_key)) continue;
    if (mask.hides(first_key + tile_keys)) mask_scores(score, mask, first_key, at);
    std::uint32_t probability[M16][N8][2];
#pragma unroll
    for (int m = 0; m < M16; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float new_largest = largest[m][h];
#pragma unroll
        for (int n = 0; n < N8; ++n) {
          new_largest = fmaxf(new_largest, fmaxf(score[m][n][2 * h], score[m][n][2 * h + 1]));
        }
        new_largest = fmaxf(new_largest, __shfl_xor_sync(0xffffffffu, new_largest, 1));
        new_largest = fmaxf(new_largest, __shfl_xor_sync(0xffffffffu, new_largest, 2));
        // A row that has seen no key yet has -infinity; less that, all its terms would be NaN instead of 0.
        const float shift = new_largest == -INFINITY ? 0.f : new_largest * a.scale_log2;
        const float shrink = exp2_fast(largest[m][h] * a.scale_log2 - shift);
        largest[m][h] = new_largest;
        float new_sum = sum[m][h] * shrink;  // of this lane's columns; the four lanes add up at the end
#pragma unroll
        for (int n = 0; n < N8; ++n) {
          const float x = exp2_fast(fmaf(score[m][n][2 * h], a.scale_log2, -shift));
          const float y = exp2_fast(fmaf(score[m][n][2 * h + 1], a.scale_log2, -shift));
          new_sum += x + y;
          probability[m][n][h] = pack(x, y);
        }
        sum[m][h] = new_sum;
#pragma unroll
        for (int n = 0; n < HEAD_SIZE / 8; ++n) {
          out[m][n][2 * h] *= shrink;
          out[m][n][2 * h + 1] *= shrink;
        }
      }
    }
    add_weights_times_rows<HEAD_SIZE>(out, probability, v_tile, offsets);
  }

#pragma unroll
  for (int m = 0; m < M16; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float row_sum = sum[m][h] + __shfl_xor_sync(0xffffffffu, sum[m][h], 1);
      row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
      // The sum is 0 where no key was seen, and only there: the largest term of a sum is 1. NaN stays NaN.
      const float factor = row_sum == 0.f ? 0.f : 1.f / row_sum;
      const float lse = row_sum == 0.f ? -INFINITY : largest[m][h] * a.scale + logf(row_sum);
      const int query = warp_query + m * 16 + at.row + 8 * h;
      if (at.column == 0 && query < a.query_length) {
        a.lse_written[(static_cast<long long>(place.batch) * a.query_length + query) * a.heads + place.head] =
            lse;
      }
#pragma unroll
      for (int n = 0; n < HEAD_SIZE / 8; ++n) {
        out[m][n][2 * h] *= factor;
        out[m][n][2 * h + 1] *= factor;
      }
    }
  }
  store_rows<HEAD_SIZE, M16, NATIVE>(a.out_written + q_begin + row_begin(at.warp * warp_queries, q_stride),
                                     q_stride, a.query_length - warp_query, columns, out, 1.f, own_q_tile,
                                     at);
}

}  // namespace escalera::cuda::attention
