// Attention in float32, forward and backward (Dao 2023; see attention_arguments.h for the formulas). The way is that of
// tensor_core_forward.h and tensor_core_backward.h; what is said there about the order of copies and barriers holds here.
// defines: float_forward_kernel(), float_query_gradient_kernel(), float_key_gradient_kernel()
#pragma once

#include <climits>

#include "common/ops/cuda/attention/attention_arguments.h"
#include "common/ops/cuda/attention/float_tiles.h"

namespace escalera::cuda::attention {

/// What all three kernels derive from their arguments.
struct FloatSizes {
  long long q_stride, k_stride;
  bool wide;
  __device__ __forceinline__ explicit FloatSizes(const AttentionArguments<float>& a)
      : q_stride(static_cast<long long>(a.heads) * a.head_size),
        k_stride(static_cast<long long>(a.kv_heads) * a.head_size),
        wide(a.copy_bytes == 16) {}
};

/// Floats of shared memory.
/// @{
template <class Shape>
constexpr int float_forward_memory = (Shape::rows + 2 * Shape::columns) * Shape::stride
                                     + Shape::rows* Shape::weights_stride;
template <class Shape>
constexpr int float_query_gradient_memory = 2 * (Shape::rows + Shape::columns) * Shape::stride
                                            + Shape::rows* Shape::weights_stride;
template <class Shape>
constexpr int float_key_gradient_memory = float_query_gradient_memory<Shape> + 2 * Shape::columns;
/// @}

/// One block computes out [queries, head_size] and lse [queries] for a tile of queries of one head: see forward_kernel().
template <int HEAD_SIZE>
__global__ void __launch_bounds__(float_threads, float_blocks)
    float_forward_kernel(const AttentionArguments<float> a, const BlockOrder order) {
  using Shape = FloatShape<HEAD_SIZE>;
  constexpr int R = Shape::R, C = Shape::C, tile_queries = Shape::rows, tile_keys = Shape::columns;
  DYNAMIC_SHARED(shared);
  float* const q_tile = reinterpret_cast<float*>(shared);       // [tile_queries][stride]
  float* const k_tile = q_tile + tile_queries * Shape::stride;  // [tile_keys][stride]
  float* const v_tile = k_tile + tile_keys * Shape::stride;     // [tile_keys][stride]
  float* const weights = v_tile + tile_keys * Shape::stride;    // [tile_queries][weights_stride]

  const FloatPosition at;
  const FloatSizes sizes(a);
  const BlockPlace place = place_of_block(order, a.heads);
  const int first_query = (order.tiles - 1 - place.tile) * tile_queries;
  const int kv_head = place.head / (a.heads / a.kv_heads);
  const long long q_begin =
      head_begin(place.batch, a.query_length, first_query, a.heads, place.head, a.head_size);
  const long long k_begin = head_begin(place.batch, a.key_length, 0, a.kv_heads, kv_head, a.head_size);
  const auto load_keys = [&](float* tile, const float* tensor, int first_key) {
    load_float_tile<Shape, tile_keys>(tile, tensor + k_begin + first_key * sizes.k_stride, sizes.k_stride,
                                      a.key_length - first_key, a.head_size, sizes.wide, at);
    commit_copies();
  };

  const int keys = visible_keys(a, min(first_query + tile_queries, a.query_length) - 1);
  const int keys_seen_by_all = visible_keys(a, first_query);
  float out[R][4 * Shape::Q], largest[R], sum[R];
  set_zero(out);
#pragma unroll
  for (int r = 0; r < R; ++r) {
    largest[r] = -INFINITY;
    sum[r] = 0.f;
  }
  if (keys > 0) {
    load_float_tile<Shape, tile_queries>(q_tile, a.q + q_begin, sizes.q_stride, a.query_length - first_query,
                                         a.head_size, sizes.wide, at);
    load_keys(k_tile, a.k, 0);
  }
  for (int first_key = 0; first_key < keys; first_key += tile_keys) {
    wait_copies<0>();
    __syncthreads();  // the keys (and queries) are there; no warp needs the previous values any more
    load_keys(v_tile, a.v, first_key);

    float score[R][C];
    set_zero(score);
    add_float_rows_times_rows<Shape>(score, q_tile, k_tile, a.head_size, at);

    wait_copies<0>();
    __syncthreads();  // the values are there; no warp needs the keys any more
    if (first_key + tile_keys < keys) load_keys(k_tile, a.k, first_key + tile_keys);

    const bool masked = first_key + tile_keys > keys_seen_by_all;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int row_keys = masked ? visible_keys(a, first_query + at.row + r * float_thread_rows) : INT_MAX;
      float new_largest = largest[r];
#pragma unroll
      for (int c = 0; c < C; ++c) {
        if (first_key + at.column + c * float_thread_columns >= row_keys) score[r][c] = -INFINITY;
        new_largest = fmaxf(new_largest, score[r][c]);
      }
      new_largest = largest_of_row(new_largest);
      const float shift = new_largest == -INFINITY ? 0.f : new_largest;
      const float shrink = expf((largest[r] - shift) * a.scale);
      largest[r] = new_largest;
      sum[r] *= shrink;  // of this thread's columns only; the row's are added up at the end
#pragma unroll
      for (int c = 0; c < C; ++c) {
        score[r][c] = expf((score[r][c] - shift) * a.scale);
        sum[r] += score[r][c];
      }
#pragma unroll
      for (int i = 0; i < 4 * Shape::Q; ++i) out[r][i] *= shrink;
    }
    store_weights<Shape>(weights, score, at);
    add_float_weights_times_rows<Shape>(out, weights, v_tile, a.head_size, at);
  }

  float factor[R];
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const float row_sum = sum_of_row(sum[r]);
    factor[r] = row_sum == 0.f ? 0.f : 1.f / row_sum;
    const int query = first_query + at.row + r * float_thread_rows;
    if (at.column == 0 && query < a.query_length) {
      a.lse_written[(static_cast<long long>(place.batch) * a.query_length + query) * a.heads + place.head] =
          row_sum == 0.f ? -INFINITY : largest[r] * a.scale + logf(row_sum);
    }
  }
  store_float_rows<Shape>(a.out_written + q_begin, sizes.q_stride, a.query_length - first_query, a.head_size,
                          sizes.wide, out, factor, at);
}

/// One block computes dq [queries, head_size] for a tile of queries of one head: see query_gradient_kernel().
template <int HEAD_SIZE>
__global__ void __launch_bounds__(float_threads, float_blocks)
    float_query_gradient_kernel(const AttentionArguments<float> a, const BlockOrder order) {
  using Shape = FloatShape<HEAD_SIZE>;
  constexpr int R = Shape::R, C = Shape::C, tile_queries = Shape::rows, tile_keys = Shape::columns;
  DYNAMIC_SHARED(shared);
  float* const q_tile = reinterpret_cast<float*>(shared);           // [tile_queries][stride]
  float* const d_out_tile = q_tile + tile_queries * Shape::stride;  // [tile_queries][stride]
  float* const k_tile = d_out_tile + tile_queries * Shape::stride;  // [tile_keys][stride]
  float* const v_tile = k_tile + tile_keys * Shape::stride;         // [tile_keys][stride]
  float* const weights = v_tile + tile_keys * Shape::stride;        // [tile_queries][weights_stride]

  const FloatPosition at;
  const FloatSizes sizes(a);
  const BlockPlace place = place_of_block(order, a.heads);
  const int first_query = (order.tiles - 1 - place.tile) * tile_queries;
  const int kv_head = place.head / (a.heads / a.kv_heads);
  const long long q_begin =
      head_begin(place.batch, a.query_length, first_query, a.heads, place.head, a.head_size);
  const long long k_begin = head_begin(place.batch, a.key_length, 0, a.kv_heads, kv_head, a.head_size);
  const auto load_queries = [&](float* tile, const float* tensor) {
    load_float_tile<Shape, tile_queries>(tile, tensor + q_begin, sizes.q_stride, a.query_length - first_query,
                                         a.head_size, sizes.wide, at);
  };
  const auto load_keys = [&](float* tile, const float* tensor, int first_key) {
    load_float_tile<Shape, tile_keys>(tile, tensor + k_begin + first_key * sizes.k_stride, sizes.k_stride,
                                      a.key_length - first_key, a.head_size, sizes.wide, at);
    commit_copies();
  };

  const int keys = visible_keys(a, min(first_query + tile_queries, a.query_length) - 1);
  const int keys_seen_by_all = visible_keys(a, first_query);
  float dq[R][4 * Shape::Q], lse[R], row_dot[R], factor[R];
  set_zero(dq);
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int query = first_query + at.row + r * float_thread_rows;
    const bool inside = query < a.query_length;
    const long long sequence = place.batch;
    lse[r] = inside ? a.lse[(sequence * a.query_length + query) * a.heads + place.head] : 0.f;
    row_dot[r] = inside ? a.row_dot[(sequence * a.heads + place.head) * a.query_length + query] : 0.f;
    factor[r] = a.scale;
  }
  if (keys > 0) {
    load_queries(q_tile, a.q);
    load_queries(d_out_tile, a.d_out);
    load_keys(v_tile, a.v, 0);
  }
  for (int first_key = 0; first_key < keys; first_key += tile_keys) {
    wait_copies<0>();
    __syncthreads();  // the values (and queries) are there; no warp needs the previous keys any more
    load_keys(k_tile, a.k, first_key);

    float d_score[R][C], score[R][C];
    set_zero(d_score);
    add_float_rows_times_rows<Shape>(d_score, d_out_tile, v_tile, a.head_size, at);  // dP so far

    wait_copies<0>();
    __syncthreads();  // the keys are there; no warp needs the values any more
    if (first_key + tile_keys < keys) load_keys(v_tile, a.v, first_key + tile_keys);
    set_zero(score);
    add_float_rows_times_rows<Shape>(score, q_tile, k_tile, a.head_size, at);

    const bool masked = first_key + tile_keys > keys_seen_by_all;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int row_keys = masked ? visible_keys(a, first_query + at.row + r * float_thread_rows) : INT_MAX;
#pragma unroll
      for (int c = 0; c < C; ++c) {
        d_score[r][c] = expf(fmaf(score[r][c], a.scale, -lse[r])) * (d_score[r][c] - row_dot[r]);
        if (first_key + at.column + c * float_thread_columns >= row_keys) d_score[r][c] = 0.f;
      }
    }
    store_weights<Shape>(weights, d_score, at);
    add_float_weights_times_rows<Shape>(dq, weights, k_tile, a.head_size, at);
  }
  store_float_rows<Shape>(a.dq + q_begin, sizes.q_stride, a.query_length - first_query, a.head_size,
                          sizes.wide, dq, factor, at);
}

/// One block computes dk and dv [keys, head_size] for a tile of keys of one key/value head: see key_gradient_kernel(). q and
/// d_out have one buffer each here; other blocks on the multiprocessor compute while this one waits.
template <int HEAD_SIZE>
__global__ void __launch_bounds__(float_threads, float_blocks)
    float_key_gradient_kernel(const AttentionArguments<float> a, const BlockOrder order) {
  using Shape = FloatShape<HEAD_SIZE>;
  constexpr int R = Shape::R, C = Shape::C, tile_keys = Shape::rows, tile_queries = Shape::columns;
  static_assert(2 * tile_queries <= float_threads);
  DYNAMIC_SHARED(shared);
  float* const k_tile = reinterpret_cast<float*>(shared);               // [tile_keys][stride]
  float* const v_tile = k_tile + tile_keys * Shape::stride;             // [tile_keys][stride]
  float* const q_tile = v_tile + tile_keys * Shape::stride;             // [tile_queries][stride]
  float* const d_out_tile = q_tile + tile_queries * Shape::stride;      // [tile_queries][stride]
  float* const weights = d_out_tile + tile_queries * Shape::stride;     // [tile_keys][weights_stride]
  float* const lse_tile = weights + tile_keys * Shape::weights_stride;  // [tile_queries]
  float* const row_dot_tile = lse_tile + tile_queries;                  // [tile_queries]

  const FloatPosition at;
  const FloatSizes sizes(a);
  const BlockPlace place = place_of_block(order, a.kv_heads);
  const int first_key = place.tile * tile_keys, group = a.heads / a.kv_heads;
  const long long k_begin =
      head_begin(place.batch, a.key_length, first_key, a.kv_heads, place.head, a.head_size);
  const auto load_keys = [&](float* tile, const float* tensor) {
    load_float_tile<Shape, tile_keys>(tile, tensor + k_begin, sizes.k_stride, a.key_length - first_key,
                                      a.head_size, sizes.wide, at);
  };
  const auto load_queries = [&](float* tile, const float* tensor, int head, int first_query) {
    load_float_tile<Shape, tile_queries>(
        tile, tensor + head_begin(place.batch, a.query_length, first_query, a.heads, head, a.head_size),
        sizes.q_stride, a.query_length - first_query, a.head_size, sizes.wide, at);
  };

  float dk[R][4 * Shape::Q], dv[R][4 * Shape::Q], one[R], factor[R];
  set_zero(dk);
  set_zero(dv);
#pragma unroll
  for (int r = 0; r < R; ++r) {
    one[r] = 1.f;
    factor[r] = a.scale;
  }
  load_keys(k_tile, a.k);
  load_keys(v_tile, a.v);
  commit_copies();
  // Queries before `query_begin` see no key of this tile.
  const int query_begin = min(a.query_length, max(0, first_key - a.diagonal)) / tile_queries * tile_queries;
  for (int head = place.head * group; head < (place.head + 1) * group; ++head) {
    for (int first_query = query_begin; first_query < a.query_length; first_query += tile_queries) {
      __syncthreads();  // no warp needs the previous tiles any more
      load_queries(q_tile, a.q, head, first_query);
      load_queries(d_out_tile, a.d_out, head, first_query);
      commit_copies();
      const int thread = static_cast<int>(threadIdx.x);
      if (thread < tile_queries) {
        const int query = first_query + thread;
        const bool inside = query < a.query_length;
        const long long sequence = place.batch;
        lse_tile[thread] = inside ? a.lse[(sequence * a.query_length + query) * a.heads + head] : 0.f;
        row_dot_tile[thread] = inside ? a.row_dot[(sequence * a.heads + head) * a.query_length + query] : 0.f;
      }
      wait_copies<0>();
      __syncthreads();  // the tiles are there

      float probability[R][C], d_score[R][C];
      set_zero(probability);
      set_zero(d_score);
      add_float_rows_times_rows<Shape>(probability, k_tile, q_tile, a.head_size, at);  // the scores so far
      add_float_rows_times_rows<Shape>(d_score, v_tile, d_out_tile, a.head_size, at);  // dP so far
      const bool masked = first_key + tile_keys - 1 > first_query + a.diagonal;
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const int column = at.column + c * float_thread_columns;
        const float lse = lse_tile[column], row_dot = row_dot_tile[column];
        const int last_key = masked ? first_query + column + a.diagonal : INT_MAX;
#pragma unroll
        for (int r = 0; r < R; ++r) {
          float p = expf(fmaf(probability[r][c], a.scale, -lse));
          if (first_key + at.row + r * float_thread_rows > last_key) p = 0.f;
          probability[r][c] = p;
          d_score[r][c] = p * (d_score[r][c] - row_dot);
        }
      }
      store_weights<Shape>(weights, probability, at);
      add_float_weights_times_rows<Shape>(dv, weights, d_out_tile, a.head_size, at);
      store_weights<Shape>(weights, d_score, at);
      add_float_weights_times_rows<Shape>(dk, weights, q_tile, a.head_size, at);
    }
  }
  wait_copies<0>();  // of a block that no query sees
  store_float_rows<Shape>(a.dk + k_begin, sizes.k_stride, a.key_length - first_key, a.head_size, sizes.wide,
                          dk, factor, at);
  store_float_rows<Shape>(a.dv + k_begin, sizes.k_stride, a.key_length - first_key, a.head_size, sizes.wide,
                          dv, one, at);
}

}  // namespace escalera::cuda::attention
