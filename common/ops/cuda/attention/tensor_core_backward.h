// Attention backward on tensor cores (Dao et al. 2022, algorithm 4), in two kernels: one has a block for each tile of
// queries and writes dq, one has a block for each tile of keys and writes dk and dv. Both compute S and dP, seven products
// instead of five, so that every sum has one owner and a fixed order: with atomic additions to dq, results would change from
// run to run.
// defines: QueryGradientTile, query_gradient_kernel(), KeyGradientTile, KeyGradients, key_gradient_kernel()
#pragma once

#include <climits>

#include "common/ops/cuda/attention/attention_arguments.h"
#include "common/ops/cuda/attention/tensor_core_tiles.h"

namespace escalera::cuda::attention {

// ---- dq -----------------------------------------------------------------------------------------------------------

/// As ForwardTile.
template <int HEAD_SIZE>
struct QueryGradientTile;
template <>
struct QueryGradientTile<16> {
  static constexpr int M16 = 2, keys = 64, blocks = 3;
};
template <>
struct QueryGradientTile<32> {
  static constexpr int M16 = 2, keys = 64, blocks = 2;
};
template <>
struct QueryGradientTile<64> {
  static constexpr int M16 = 2, keys = 64, blocks = 2;
};
template <>
struct QueryGradientTile<96> {
  static constexpr int M16 = 2, keys = 32, blocks = 2;
};
template <>
struct QueryGradientTile<128> {
  static constexpr int M16 = 2, keys = 32, blocks = 2;
};
template <>
struct QueryGradientTile<256> {
  static constexpr int M16 = 1, keys = 32, blocks = 2;
};

/// One block computes dq [queries, head_size] for a tile of queries of one head. Equivalent to
///   for each query i of the tile, for each key j that i sees:
///     p = exp(scale * dot(q[i], k[j]) - lse[i])
///     ds = p * (dot(d_out[i], v[j]) - row_dot[i])
///     dq[i] += scale * ds * k[j]
/// Keys and values have one buffer each. Values come first, so that the next ones arrive during both products with the keys.
template <int HEAD_SIZE, bool NATIVE>
__global__ void __launch_bounds__(threads_of_block, blocks_for<QueryGradientTile<HEAD_SIZE>, NATIVE>)
    query_gradient_kernel(const AttentionArguments<bf16> a, const BlockOrder order) {
  constexpr int M16 = QueryGradientTile<HEAD_SIZE>::M16, N8 = QueryGradientTile<HEAD_SIZE>::keys / 8;
  constexpr int warp_queries = M16 * 16, tile_queries = warps_of_block * warp_queries, tile_keys = N8 * 8;
  DYNAMIC_SHARED(shared);
  bf16* const q_tile = reinterpret_cast<bf16*>(shared);        // [tile_queries][HEAD_SIZE]
  bf16* const d_out_tile = q_tile + tile_queries * HEAD_SIZE;  // [tile_queries][HEAD_SIZE]
  bf16* const k_tile = d_out_tile + tile_queries * HEAD_SIZE;  // [tile_keys][HEAD_SIZE]
  bf16* const v_tile = k_tile + tile_keys * HEAD_SIZE;         // [tile_keys][HEAD_SIZE]

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
  float dq[M16][HEAD_SIZE / 8][4], lse_log2[M16][2], row_dot[M16][2];
  set_zero(dq);
#pragma unroll
  for (int m = 0; m < M16; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int query = warp_query + m * 16 + at.row + 8 * h;
      const bool inside = query < a.query_length;
      const long long sequence = place.batch;
      lse_log2[m][h] =
          inside ? a.lse[(sequence * a.query_length + query) * a.heads + place.head] * log2_e : 0.f;
      row_dot[m][h] = inside ? a.row_dot[(sequence * a.heads + place.head) * a.query_length + query] : 0.f;
    }
  }

  if (keys > 0) {
    const int rows = a.query_length - first_query;
    load_tile<HEAD_SIZE, tile_queries, NATIVE>(q_tile, a.q + q_begin, q_stride, rows, columns);
    load_tile<HEAD_SIZE, tile_queries, NATIVE>(d_out_tile, a.d_out + q_begin, q_stride, rows, columns);
    load_tile<HEAD_SIZE, tile_keys, NATIVE>(v_tile, a.v + k_begin, k_stride, a.key_length, columns);
    commit_copies();
  }
  for (int first_key = 0; first_key < keys; first_key += tile_keys) {
    wait_copies<0>();
    __syncthreads();  // the values (and queries) are there; no warp needs the previous keys any more
    load_tile<HEAD_SIZE, tile_keys, NATIVE>(k_tile, a.k + k_begin + row_begin(first_key, k_stride), k_stride,
                                            a.key_length - first_key, columns);
    commit_copies();

    float d_probability[M16][N8][4];
    set_zero(d_probability);
    if (mask.sees(first_key)) {
      add_rows_times_rows<HEAD_SIZE>(d_probability, d_out_tile + at.warp * warp_queries * HEAD_SIZE, v_tile,
                                     offsets);
    }

    wait_copies<0>();
    __syncthreads();  // the keys are there; no warp needs the values any more
    if (first_key + tile_keys < keys) {
      const int next_key = first_key + tile_keys;
      load_tile<HEAD_SIZE, tile_keys, NATIVE>(v_tile, a.v + k_begin + row_begin(next_key, k_stride), k_stride,
                                              a.key_length - next_key, columns);
      commit_copies();
    }
    if (!mask.sees(first_key)) continue;
    float score[M16][N8][4];
    set_zero(score);
    add_rows_times_rows<HEAD_SIZE>(score, own_q_tile, k_tile, offsets);

    // Where a query does not see a key, dS is set to 0 after the exponential, which may be infinite: lse is -infinity for
    // a query that sees nothing, and where lse < -88 even the zeros behind the last key have exp(0 - lse) = infinity.
    const bool masked = mask.hides(first_key + tile_keys);
    std::uint32_t d_score[M16][N8][2];
#pragma unroll
    for (int m = 0; m < M16; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int last_column =
            masked ? mask.last_key(m * 16 + at.row + 8 * h) - first_key - at.column : INT_MAX;
#pragma unroll
        for (int n = 0; n < N8; ++n) {
          float ds[2];
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const float p = exp2_fast(fmaf(score[m][n][2 * h + c], a.scale_log2, -lse_log2[m][h]));
            ds[c] = p * (d_probability[m][n][2 * h + c] - row_dot[m][h]);
            if (n * 8 + c > last_column) ds[c] = 0.f;
          }
          d_score[m][n][h] = pack(ds[0], ds[1]);
        }
      }
    }
    add_weights_times_rows<HEAD_SIZE>(dq, d_score, k_tile, offsets);
  }
  store_rows<HEAD_SIZE, M16, NATIVE>(a.dq + q_begin + row_begin(at.warp * warp_queries, q_stride), q_stride,
                                     a.query_length - warp_query, columns, dq, a.scale, own_q_tile, at);
}

// ---- dk and dv ----------------------------------------------------------------------------------------------------

/// As ForwardTile, with keys and queries in each other's place.
template <int HEAD_SIZE>
struct KeyGradientTile;
template <>
struct KeyGradientTile<16> {
  static constexpr int M16 = 2, queries = 64, blocks = 3;
};
template <>
struct KeyGradientTile<32> {
  static constexpr int M16 = 2, queries = 32, blocks = 2;
};
template <>
struct KeyGradientTile<64> {
  static constexpr int M16 = 2, queries = 32, blocks = 2;
};
template <>
struct KeyGradientTile<96> {
  static constexpr int M16 = 1, queries = 64, blocks = 2;
};
template <>
struct KeyGradientTile<128> {
  static constexpr int M16 = 1, queries = 32, blocks = 2;
};
template <>
struct KeyGradientTile<256> {
  static constexpr int M16 = 1, queries = 16, blocks = 2;
};

/// dk and dv of a tile have to be kept in registers. For a head size of 256 there is room for one of the two only; then a
/// launch computes dv, which does not need dP, and another one dk.
enum class KeyGradients { both, only_dk, only_dv };

/// One block computes dk and dv [keys, head_size] for a tile of keys of one key/value head. Equivalent to
///   for each key j of the tile, for each query head of the group, for each query i that sees j:
///     p = exp(scale * dot(q[i], k[j]) - lse[i])
///     ds = p * (dot(d_out[i], v[j]) - row_dot[i])
///     dv[j] += p * d_out[i]
///     dk[j] += scale * ds * q[i]
/// Keys are the rows here: S^T and dP^T are computed, so that P^T and dS^T are left operands of the products as they are.
/// lse and row_dot belong to columns, and travel with the tiles of q and d_out, which have two buffers: the next ones arrive
/// while these are computed with.
template <int HEAD_SIZE, bool NATIVE, KeyGradients GRADIENTS>
__global__ void __launch_bounds__(threads_of_block, blocks_for<KeyGradientTile<HEAD_SIZE>, NATIVE>)
    key_gradient_kernel(const AttentionArguments<bf16> a, const BlockOrder order) {
  constexpr int M16 = KeyGradientTile<HEAD_SIZE>::M16, N8 = KeyGradientTile<HEAD_SIZE>::queries / 8;
  constexpr int warp_keys = M16 * 16, tile_keys = warps_of_block * warp_keys, tile_queries = N8 * 8;
  constexpr int tile_size = tile_queries * HEAD_SIZE;
  constexpr bool with_dk = GRADIENTS != KeyGradients::only_dv, with_dv = GRADIENTS != KeyGradients::only_dk;
  DYNAMIC_SHARED(shared);
  bf16* const k_tile = reinterpret_cast<bf16*>(shared);  // [tile_keys][HEAD_SIZE]
  bf16* const v_tile = k_tile + tile_keys * HEAD_SIZE;   // [tile_keys][HEAD_SIZE]
  bf16* const q_tiles = v_tile + tile_keys * HEAD_SIZE;  // [2][tile_queries][HEAD_SIZE]
  bf16* const d_out_tiles = q_tiles + 2 * tile_size;     // [2][tile_queries][HEAD_SIZE]
  float* const lse_tiles = reinterpret_cast<float*>(d_out_tiles + 2 * tile_size);  // [2][tile_queries]
  float* const row_dot_tiles = lse_tiles + 2 * tile_queries;                       // [2][tile_queries]

  const LanePosition at;
  const FragmentOffsets<HEAD_SIZE> offsets;
  const Columns columns{a.head_size, a.copy_bytes};
  const int head_size = NATIVE ? HEAD_SIZE : a.head_size;
  const int q_stride = a.heads * head_size, k_stride = a.kv_heads * head_size;
  const BlockPlace place = place_of_block(order, a.kv_heads);
  const int first_key = place.tile * tile_keys;  // the first keys are seen by most queries
  const int warp_key = first_key + at.warp * warp_keys;
  const int group = a.heads / a.kv_heads;
  bf16* const own_k_tile = k_tile + at.warp * warp_keys * HEAD_SIZE;
  bf16* const own_v_tile = v_tile + at.warp * warp_keys * HEAD_SIZE;

  // Queries before `query_begin` see no key of this tile. Every head of the group adds the rest, a tile at a time.
  const int query_begin = min(a.query_length, max(0, first_key - a.diagonal)) / tile_queries * tile_queries;
  const int tiles_of_head = (a.query_length - query_begin + tile_queries - 1) / tile_queries;
  const int steps = tiles_of_head * group;
  int next_head = place.head * group, next_query = query_begin;
  const auto load_next_step = [&](int buffer) {
    const int rows = a.query_length - next_query;
    load_tile<HEAD_SIZE, tile_queries, NATIVE>(
        q_tiles + buffer * tile_size,
        a.q + head_begin(place.batch, a.query_length, next_query, a.heads, next_head, head_size), q_stride,
        rows, columns);
    load_tile<HEAD_SIZE, tile_queries, NATIVE>(
        d_out_tiles + buffer * tile_size,
        a.d_out + head_begin(place.batch, a.query_length, next_query, a.heads, next_head, head_size),
        q_stride, rows, columns);
    // Queries behind the last one come as zeros in everything: P is 1, d_out and dP - D are 0, and so they add nothing.
    const int thread = static_cast<int>(threadIdx.x), i = thread % tile_queries;
    const bool inside = i < rows;
    const long long sequence = place.batch, query = inside ? next_query + i : next_query;
    static_assert(2 * tile_queries <= threads_of_block);
    if (thread < tile_queries) {
      copy_async<4>(lse_tiles + buffer * tile_queries + i,
                    a.lse + (sequence * a.query_length + query) * a.heads + next_head, inside);
    } else if (thread < 2 * tile_queries) {
      copy_async<4>(row_dot_tiles + buffer * tile_queries + i,
                    a.row_dot + (sequence * a.heads + next_head) * a.query_length + query, inside);
    }
    commit_copies();
    next_query += tile_queries;
    if (next_query >= a.query_length) {
      next_query = query_begin;
      ++next_head;
    }
  };

  float dk[M16][HEAD_SIZE / 8][4], dv[M16][HEAD_SIZE / 8][4];
  set_zero(dk);
  set_zero(dv);
  if (steps > 0) {
    const int rows = a.key_length - first_key;
    load_tile<HEAD_SIZE, tile_keys, NATIVE>(
        k_tile, a.k + head_begin(place.batch, a.key_length, first_key, a.kv_heads, place.head, head_size),
        k_stride, rows, columns);
    if (with_dk) {
      load_tile<HEAD_SIZE, tile_keys, NATIVE>(
          v_tile, a.v + head_begin(place.batch, a.key_length, first_key, a.kv_heads, place.head, head_size),
          k_stride, rows, columns);
    }
    load_next_step(0);
  }
  int first_query = query_begin - tile_queries;
  for (int step = 0; step < steps; ++step) {
    first_query += tile_queries;
    if (first_query >= a.query_length) first_query = query_begin;
    wait_copies<0>();
    __syncthreads();  // the tiles of this step are there; no warp needs the other buffer any more
    const int buffer = step % 2;
    if (step + 1 < steps) load_next_step(1 - buffer);
    const bf16* const q_tile = q_tiles + buffer * tile_size;
    const bf16* const d_out_tile = d_out_tiles + buffer * tile_size;
    const int last_query = min(first_query + tile_queries, a.query_length) - 1;
    if (warp_key > last_query + a.diagonal || warp_key >= a.key_length) continue;

    float score[M16][N8][4], d_probability[M16][N8][4];
    set_zero(score);
    set_zero(d_probability);
    add_rows_times_rows<HEAD_SIZE>(score, own_k_tile, q_tile, offsets);
    if (with_dk) add_rows_times_rows<HEAD_SIZE>(d_probability, own_v_tile, d_out_tile, offsets);

    const bool masked = first_key + tile_keys - 1 > first_query + a.diagonal;
    std::uint32_t probability[M16][N8][2], d_score[M16][N8][2];
#pragma unroll
    for (int n = 0; n < N8; ++n) {
      const int column = n * 8 + at.column;
      const float2 lse = *reinterpret_cast<const float2*>(lse_tiles + buffer * tile_queries + column);
      const float2 row_dot = *reinterpret_cast<const float2*>(row_dot_tiles + buffer * tile_queries + column);
      const int last_key = masked ? first_query + column + a.diagonal : INT_MAX - 1;  // of the left column
#pragma unroll
      for (int m = 0; m < M16; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int key = warp_key + m * 16 + at.row + 8 * h;
          float x = exp2_fast(fmaf(score[m][n][2 * h], a.scale_log2, -lse.x * log2_e));
          float y = exp2_fast(fmaf(score[m][n][2 * h + 1], a.scale_log2, -lse.y * log2_e));
          if (key > last_key) x = 0.f;
          if (key > last_key + 1) y = 0.f;
          probability[m][n][h] = pack(x, y);
          d_score[m][n][h] = pack(x * (d_probability[m][n][2 * h] - row_dot.x),
                                  y * (d_probability[m][n][2 * h + 1] - row_dot.y));
        }
      }
    }
    if (with_dv) add_weights_times_rows<HEAD_SIZE>(dv, probability, d_out_tile, offsets);
    if (with_dk) add_weights_times_rows<HEAD_SIZE>(dk, d_score, q_tile, offsets);
  }
  if (with_dk) {
    store_rows<HEAD_SIZE, M16, NATIVE>(
        a.dk + head_begin(place.batch, a.key_length, warp_key, a.kv_heads, place.head, head_size), k_stride,
        a.key_length - warp_key, columns, dk, a.scale, own_k_tile, at);
  }
  if (with_dv) {
    store_rows<HEAD_SIZE, M16, NATIVE>(
        a.dv + head_begin(place.batch, a.key_length, warp_key, a.kv_heads, place.head, head_size), k_stride,
        a.key_length - warp_key, columns, dv, 1.f, own_v_tile, at);
  }
}

}  // namespace escalera::cuda::attention
