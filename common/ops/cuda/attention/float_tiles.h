// Tiles of float32 in shared memory and products of them on the ordinary cores: float32 throughout, nothing is rounded to
// TF32. The kernels that are made of these (float_forward.h, float_backward.h) go the same way as those on tensor cores.
// defines: FloatShape, FloatPosition, load_float_tile(), add_float_rows_times_rows(), store_weights(),
//          add_float_weights_times_rows(), store_float_rows()
//
// A block has 128 threads, 8 x 16. Thread (row, column) has rows row, row + 8, ... of the block's tile, and of these the
// scores with columns column, column + 16, ... and the columns 4 column + {0, 1, 2, 3} + {0, 64, ...} of the head. So a row
// belongs to 16 threads, half a warp.
#pragma once

#include <cuda_instructions.h>

#include <cmath>

namespace escalera::cuda::attention {

constexpr int float_threads = 128;
constexpr int float_blocks = 2;  // on a multiprocessor, at least; shared memory does not allow many more
constexpr int float_thread_rows = 8;
constexpr int float_thread_columns = 16;

/// Tile sizes for heads of up to HEAD_SIZE columns: `rows` rows of the block's tile, and `columns` of the scores at a time.
template <int HEAD_SIZE>
struct FloatShape {
  static constexpr int rows = HEAD_SIZE <= 128 ? 32 : 16;
  static constexpr int columns = HEAD_SIZE <= 64 ? 64 : HEAD_SIZE <= 128 ? 32 : 16;
  static constexpr int R = rows / float_thread_rows;        // rows of a thread
  static constexpr int C = columns / float_thread_columns;  // its columns of the scores
  static constexpr int Q = HEAD_SIZE / 64;                  // its columns of the head, in quadruples
  /// From row to row of a tile: four floats more than the columns, so that threads that read 16 bytes each from rows one
  /// after the other use all banks of shared memory.
  static constexpr int stride = HEAD_SIZE + 4;
  /// The same for weights, where half a warp writes 16 floats of one row, the other half of the next.
  static constexpr int weights_stride = columns % 32 == 16 ? columns : columns + 16;
};

/// Where a thread stands among the 8 x 16 of its block.
struct FloatPosition {
  int row, column;
  __device__ __forceinline__ FloatPosition()
      : row(static_cast<int>(threadIdx.x / float_thread_columns)),
        column(static_cast<int>(threadIdx.x % float_thread_columns)) {}
};

/// Starts copying ROWS rows into a tile. Rows from `valid_rows` on, and columns behind the last one up to a multiple of 4,
/// become zero; what is beyond stays as it is and is never read. 16 bytes at a time if `wide`.
template <class Shape, int ROWS>
__device__ __forceinline__ void load_float_tile(float* tile, const float* source, long long row_stride,
                                                int valid_rows, int head_size, bool wide,
                                                const FloatPosition& at) {
#pragma unroll 1
  for (int row = at.row; row < ROWS; row += float_thread_rows) {
    const bool inside = row < valid_rows;
    const float* from = source + row * row_stride;
#pragma unroll 1
    for (int column = 4 * at.column; column < head_size; column += 4 * float_thread_columns) {
      float* to = tile + row * Shape::stride + column;
      if (wide) {
        copy_async<16>(to, from + column, inside);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          copy_async<4>(to + i, from + column + i, inside && column + i < head_size);
      }
    }
  }
}

template <int R, int C>
__device__ __forceinline__ void set_zero(float (&sum)[R][C]) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int c = 0; c < C; ++c) sum[r][c] = 0.f;
  }
}

/// Every row of `a` with every row of `b`. Equivalent, with rows and columns of the block's whole sum, to
///   sum[i][j] += dot(a[i][:], b[j][:])     for i in [0, rows), j in [0, columns)
template <class Shape>
__device__ __forceinline__ void add_float_rows_times_rows(float (&sum)[Shape::R][Shape::C], const float* a,
                                                          const float* b, int head_size,
                                                          const FloatPosition& at) {
  a += at.row * Shape::stride;
  b += at.column * Shape::stride;
#pragma unroll 1
  for (int d = 0; d < head_size; d += 4) {
    float4 x[Shape::R], y[Shape::C];
#pragma unroll
    for (int r = 0; r < Shape::R; ++r) {
      x[r] = *reinterpret_cast<const float4*>(a + r * float_thread_rows * Shape::stride + d);
    }
#pragma unroll
    for (int c = 0; c < Shape::C; ++c) {
      y[c] = *reinterpret_cast<const float4*>(b + c * float_thread_columns * Shape::stride + d);
    }
#pragma unroll
    for (int r = 0; r < Shape::R; ++r) {
#pragma unroll
      for (int c = 0; c < Shape::C; ++c) {
        float value = sum[r][c];
        value = fmaf(x[r].x, y[c].x, value);
        value = fmaf(x[r].y, y[c].y, value);
        value = fmaf(x[r].z, y[c].z, value);
        sum[r][c] = fmaf(x[r].w, y[c].w, value);
      }
    }
  }
}

/// Leaves weights, P or dS, in shared memory [rows][columns] for add_float_weights_times_rows(). Only the half warp that
/// owns a row reads it again, so the block needs no barrier.
template <class Shape>
__device__ __forceinline__ void store_weights(float* tile, const float (&weights)[Shape::R][Shape::C],
                                              const FloatPosition& at) {
  __syncwarp();  // the other lanes have read what was here before
#pragma unroll
  for (int r = 0; r < Shape::R; ++r) {
#pragma unroll
    for (int c = 0; c < Shape::C; ++c) {
      tile[(at.row + r * float_thread_rows) * Shape::weights_stride + at.column + c * float_thread_columns] =
          weights[r][c];
    }
  }
  __syncwarp();  // they see what is here now
}

/// Equivalent to
///   sum[i][c] += weights[i][j] * b[j][c]   for i in [0, rows), j in [0, columns), c in [0, head_size)
template <class Shape>
__device__ __forceinline__ void add_float_weights_times_rows(float (&sum)[Shape::R][4 * Shape::Q],
                                                             const float* weights, const float* b,
                                                             int head_size, const FloatPosition& at) {
  weights += at.row * Shape::weights_stride;
#pragma unroll 1
  for (int j = 0; j < Shape::columns; j += 4) {
    float x[Shape::R][4];
#pragma unroll
    for (int r = 0; r < Shape::R; ++r) {
      const float4 w =
          *reinterpret_cast<const float4*>(weights + r * float_thread_rows * Shape::weights_stride + j);
      x[r][0] = w.x;
      x[r][1] = w.y;
      x[r][2] = w.z;
      x[r][3] = w.w;
    }
#pragma unroll
    for (int q = 0; q < Shape::Q; ++q) {
      const int column = 4 * at.column + 64 * q;
      if (column >= head_size) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 y = *reinterpret_cast<const float4*>(b + (j + i) * Shape::stride + column);
#pragma unroll
        for (int r = 0; r < Shape::R; ++r) {
          sum[r][4 * q] = fmaf(x[r][i], y.x, sum[r][4 * q]);
          sum[r][4 * q + 1] = fmaf(x[r][i], y.y, sum[r][4 * q + 1]);
          sum[r][4 * q + 2] = fmaf(x[r][i], y.z, sum[r][4 * q + 2]);
          sum[r][4 * q + 3] = fmaf(x[r][i], y.w, sum[r][4 * q + 3]);
        }
      }
    }
  }
}

/// Writes the block's sums, each row times its factor, to rows of a tensor; rows from `valid_rows` on are dropped.
template <class Shape>
__device__ __forceinline__ void store_float_rows(float* to, long long row_stride, int valid_rows,
                                                 int head_size, bool wide,
                                                 const float (&sum)[Shape::R][4 * Shape::Q],
                                                 const float (&factor)[Shape::R], const FloatPosition& at) {
#pragma unroll
  for (int r = 0; r < Shape::R; ++r) {
    const int row = at.row + r * float_thread_rows;
    if (row >= valid_rows) break;
#pragma unroll
    for (int q = 0; q < Shape::Q; ++q) {
      const int column = 4 * at.column + 64 * q;
      float* out = to + row * row_stride + column;
      if (wide && column < head_size) {
        *reinterpret_cast<float4*>(out) =
            make_float4(sum[r][4 * q] * factor[r], sum[r][4 * q + 1] * factor[r],
                        sum[r][4 * q + 2] * factor[r], sum[r][4 * q + 3] * factor[r]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (column + i < head_size) out[i] = sum[r][4 * q + i] * factor[r];
        }
      }
    }
  }
}

/// The largest, or the sum, of a value over the 16 threads of a row.
/// @{
__device__ __forceinline__ float largest_of_row(float value) {
#pragma unroll
  for (int distance = 1; distance < float_thread_columns; distance *= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}
__device__ __forceinline__ float sum_of_row(float value) {
#pragma unroll
  for (int distance = 1; distance < float_thread_columns; distance *= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}
/// @}

}  // namespace escalera::cuda::attention
