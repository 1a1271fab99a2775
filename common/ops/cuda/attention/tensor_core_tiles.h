// Tiles of bfloat16 in shared memory, and products of them that one warp computes on tensor cores.
// defines: Columns, LanePosition, Tile, load_tile(), WarpMask, FragmentOffsets, add_rows_times_rows(),
//          add_weights_times_rows(), store_rows()
//
// A block has four warps. Each owns M16 * 16 rows of the block's tile and everything that is computed from them; the columns
// are the head's. Accumulators are arrays [M16][N8][4] of float: M16 x N8 pieces of 16 x 8, of which every lane holds four
// elements (see multiply_accumulate in cuda_instructions.h).
#pragma once

#include <cuda_instructions.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/ops/cuda/attention/attention_arguments.h"

namespace escalera::cuda::attention {

using bf16 = __nv_bfloat16;

constexpr int warps_of_block = 4;
constexpr int threads_of_block = 32 * warps_of_block;
constexpr float log2_e = 1.4426950408889634f;

/// The columns of a tensor's head: the first head_size of a tile's HEAD_SIZE; the rest is padding and always zero. A NATIVE
/// kernel has head_size = HEAD_SIZE and copy_bytes = 16 and never looks in here.
struct Columns {
  int head_size;
  int copy_bytes;  ///< 16, 4 or 2, see AttentionArguments
};

/// The blocks on a multiprocessor that a kernel is compiled for. A padded one has more to remember, so it may have more
/// registers.
template <class Shape, bool NATIVE>
constexpr int blocks_for = NATIVE || Shape::blocks == 1 ? Shape::blocks : Shape::blocks - 1;

/// Where a lane's four elements of an accumulator piece lie: element 2 h + c is (row + 8 h, column + c).
struct LanePosition {
  int warp, lane, row, column;
  __device__ __forceinline__ LanePosition()
      // The first lane tells the others, so that the compiler knows that a warp goes the same way at branches on `warp`.
      : warp(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0)),
        lane(static_cast<int>(threadIdx.x % 32)),
        row(static_cast<int>(threadIdx.x % 32 / 4)),
        column(static_cast<int>(threadIdx.x % 4 * 2)) {}
};

/// Two values rounded to bfloat16 in one register, `low` in its low half.
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  std::memcpy(&bits, &pair, sizeof bits);
  return bits;
}

// ---- tiles --------------------------------------------------------------------------------------------------------

/// A tile is [rows][HEAD_SIZE], in chunks of 16 bytes. Shared memory delivers eight chunks at a time, if they lie in
/// different eighths of a 128-byte line. load_matrices() asks for the same chunk of eight consecutive rows; in a plain
/// layout with 64 columns these would all lie in the same eighth. So the chunks of a row trade places: chunk c lies where
/// c XOR (row % 8) would. Rows of 32 or 64 bytes share a line, and the number to XOR with grows from line to line only; of
/// 12 chunks (96 columns) those in the same group of 4 trade places.
template <int HEAD_SIZE>
struct Tile {
  static_assert(HEAD_SIZE % 16 == 0);
  static constexpr int chunks = HEAD_SIZE / 8;
  static constexpr int power_of_two = chunks & -chunks;  // the largest that divides `chunks`
  static constexpr int group = power_of_two < 8 ? power_of_two : 8;
  static constexpr int rows_of_line = 8 / group;

  /// In elements. For rows that differ by a multiple of 8, it differs by that times HEAD_SIZE.
  __device__ __forceinline__ static int offset(int row, int chunk) {
    const int moved = (chunk & ~(group - 1)) | ((chunk ^ (row / rows_of_line)) & (group - 1));
    return row * HEAD_SIZE + moved * 8;
  }
};

/// Copies one chunk; what is not `inside`, and from column `columns.head_size` on, becomes zero.
template <bool NATIVE>
__device__ __forceinline__ void load_chunk(bf16* to, const bf16* from, int column, bool inside,
                                           const Columns& columns) {
  if (NATIVE || columns.copy_bytes == 16) {
    copy_async<16>(to, from, inside && (NATIVE || column < columns.head_size));
  } else if (columns.copy_bytes == 4) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) copy_async<4>(to + i, from + i, inside && column + i < columns.head_size);
  } else {
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      to[i] = inside && column + i < columns.head_size ? from[i] : __ushort_as_bfloat16(0);
    }
  }
}

/// Starts copying ROWS rows, `row_stride` elements apart, into a tile; rows from `valid_rows` on become zero. Equivalent to
///   for row in [0, ROWS), column in [0, HEAD_SIZE):
///     tile[row][column] = row < valid_rows and column < head_size ? source[row * row_stride + column] : 0
template <int HEAD_SIZE, int ROWS, bool NATIVE>
__device__ __forceinline__ void load_tile(bf16* tile, const bf16* source, int row_stride, int valid_rows,
                                          const Columns& columns) {
  using Layout = Tile<HEAD_SIZE>;
  // Neighbouring threads copy neighbouring chunks. A thread keeps its chunks and goes down the rows, in steps of a multiple
  // of 8, with one running pointer: given an address per row, the compiler holds dozens of them through the main loop.
  constexpr int lanes = Layout::power_of_two < 16 ? Layout::power_of_two : 16;
  constexpr int rows_at_once = threads_of_block / lanes;
  static_assert(rows_at_once % 8 == 0);
  const int row = static_cast<int>(threadIdx.x / lanes), chunk = static_cast<int>(threadIdx.x % lanes);
  if (rows_at_once > ROWS && row >= ROWS) return;
  bf16* to = tile + Layout::offset(row, chunk);
  const bf16* from = source + (row * row_stride + chunk * 8);  // 32 bits: row_stride < 2^24
#pragma unroll(NATIVE ? ROWS : 1)
  for (int first = 0; first < ROWS; first += rows_at_once) {
#pragma unroll(NATIVE ? HEAD_SIZE : 1)
    for (int skip = 0; skip < Layout::chunks; skip += lanes) {
      load_chunk<NATIVE>(to + first * HEAD_SIZE + skip * 8, from + skip * 8, (chunk + skip) * 8,
                         row + first < valid_rows, columns);
    }
    from += rows_at_once * row_stride;
  }
}

// ---- the mask -----------------------------------------------------------------------------------------------------

/// What the queries of one warp see. Near the diagonal and behind the last query there are warps that see nothing of a tile
/// of keys that others see; they skip its products, but not the barriers.
class WarpMask {
 public:
  template <class Element>
  __device__ __forceinline__ WarpMask(const AttentionArguments<Element>& a, int warp_query, int warp_queries)
      : key_length_(a.key_length),
        warp_queries_(warp_queries),
        last_key_(warp_query < a.query_length ? warp_query + a.diagonal : -warp_queries) {}

  /// Whether any of the queries sees any key from `first_key` on.
  __device__ __forceinline__ bool sees(int first_key) const { return first_key < last_key_ + warp_queries_; }
  /// Whether one of them does not see one of the keys before `end`.
  __device__ __forceinline__ bool hides(int end) const { return end > min(last_key_ + 1, key_length_); }
  /// The last key that the warp's query `row` sees.
  __device__ __forceinline__ int last_key(int row) const { return min(last_key_ + row, key_length_ - 1); }

 private:
  int key_length_, warp_queries_;
  int last_key_;  // of the first query, if there were so many keys
};

// ---- products -----------------------------------------------------------------------------------------------------

template <int M16, int N8>
__device__ __forceinline__ void set_zero(float (&sum)[M16][N8][4]) {
#pragma unroll
  for (int m = 0; m < M16; ++m) {
#pragma unroll
    for (int n = 0; n < N8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][n][i] = 0.f;
    }
  }
}

/// Where a lane points to for load_matrices(), in elements from the first of 16 rows of a tile: operands of tensor cores are
/// pieces of 16 rows x 16 columns, four 8x8 matrices. One number is kept for either kind of operand, for the first columns;
/// XOR moves it to where a chunk of other columns lies (see Tile), which is cheaper than a register for each of them.
template <int HEAD_SIZE>
class FragmentOffsets {
 public:
  __device__ __forceinline__ FragmentOffsets() {
    const int lane = static_cast<int>(threadIdx.x % 32), high = lane >> 4, middle = (lane >> 3) & 1;
    // Lanes 0-7, 8-15, 16-23 and 24-31 point to one matrix each. As a left operand, and for load_matrices_transposed(), they
    // take the upper left, lower left, upper right, lower right one; as the rows of a right operand lower left and upper
    // right change places.
    left_ = Tile<HEAD_SIZE>::offset((lane & 7) + 8 * middle, high);
    right_ = Tile<HEAD_SIZE>::offset((lane & 7) + 8 * high, middle);
  }
  /// Columns 16 * k16 to 16 * k16 + 15.
  /// @{
  __device__ __forceinline__ int left(int k16) const { return moved(left_, k16 * 16); }
  __device__ __forceinline__ int right(int k16) const { return moved(right_, k16 * 16); }
  /// @}

 private:
  __device__ __forceinline__ static int moved(int offset, int columns) {
    constexpr int within_group = Tile<HEAD_SIZE>::group * 8 - 1;
    return (offset ^ (columns & within_group)) + (columns & ~within_group);
  }
  int left_, right_;
};

/// Every row of `a` with every row of `b`, both tiles. Equivalent, with rows and columns of the warp's whole sum, to
///   sum[i][j] += dot(a[i][:], b[j][:])     for i in [0, M16 * 16), j in [0, N8 * 8)
template <int HEAD_SIZE, int M16, int N8>
__device__ __forceinline__ void add_rows_times_rows(float (&sum)[M16][N8][4], const bf16* a, const bf16* b,
                                                    const FragmentOffsets<HEAD_SIZE>& offsets) {
#pragma unroll 4  // not more: the compiler would hold all offsets through the main loop and run out of registers
  for (int k16 = 0; k16 < HEAD_SIZE / 16; ++k16) {
    std::uint32_t a_fragment[M16][4];
#pragma unroll
    for (int m = 0; m < M16; ++m) load_matrices(a_fragment[m], a + m * 16 * HEAD_SIZE + offsets.left(k16));
#pragma unroll
    for (int n = 0; n < N8; n += 2) {
      std::uint32_t b_fragment[4];  // rows n * 8 to n * 8 + 15 of b
      load_matrices(b_fragment, b + n * 8 * HEAD_SIZE + offsets.right(k16));
#pragma unroll
      for (int m = 0; m < M16; ++m) {
        multiply_accumulate(sum[m][n], a_fragment[m], b_fragment[0], b_fragment[1]);
        multiply_accumulate(sum[m][n + 1], a_fragment[m], b_fragment[2], b_fragment[3]);
      }
    }
  }
}

/// `weights` are an accumulator of an earlier product, rounded: weights[m][n][h] holds columns `column` and `column` + 1 of
/// row `row` + 8 h of piece (m, n). Two such pieces side by side are exactly the left operand of a tensor-core product, so
/// P and dS never pass through shared memory. Equivalent to
///   sum[i][c] += weights[i][j] * b[j][c]   for i in [0, M16 * 16), j in [0, K8 * 8), c in [0, HEAD_SIZE)
template <int HEAD_SIZE, int M16, int K8>
__device__ __forceinline__ void add_weights_times_rows(float (&sum)[M16][HEAD_SIZE / 8][4],
                                                       const std::uint32_t (&weights)[M16][K8][2],
                                                       const bf16* b,
                                                       const FragmentOffsets<HEAD_SIZE>& offsets) {
#pragma unroll
  for (int k = 0; k < K8; k += 2) {
#pragma unroll
    for (int n = 0; n < HEAD_SIZE / 8; n += 2) {
      std::uint32_t b_fragment[4];  // rows k * 8 to k * 8 + 15 of b, columns n * 8 to n * 8 + 15
      load_matrices_transposed(b_fragment, b + k * 8 * HEAD_SIZE + offsets.left(n / 2));
#pragma unroll
      for (int m = 0; m < M16; ++m) {
        const std::uint32_t a_fragment[4] = {weights[m][k][0], weights[m][k][1], weights[m][k + 1][0],
                                             weights[m][k + 1][1]};
        multiply_accumulate(sum[m][n], a_fragment, b_fragment[0], b_fragment[1]);
        multiply_accumulate(sum[m][n + 1], a_fragment, b_fragment[2], b_fragment[3]);
      }
    }
  }
}

// ---- results ------------------------------------------------------------------------------------------------------

/// Writes a warp's sums, times `factor`, to rows of a tensor; rows from `valid_rows` on are dropped. Equivalent to
///   to[row * row_stride + column] = sum[row][column] * factor   for row in [0, valid_rows), column in [0, head_size)
/// Lanes hold pairs of columns, 4 bytes; so that whole rows are written 16 bytes at a time, they pass through `tile`, the
/// warp's own M16 * 16 rows of a tile that it alone has read from and does not need any more.
template <int HEAD_SIZE, int M16, bool NATIVE>
__device__ __forceinline__ void store_rows(bf16* to, int row_stride, int valid_rows, const Columns& columns,
                                           const float (&sum)[M16][HEAD_SIZE / 8][4], float factor,
                                           bf16* tile, const LanePosition& at) {
  using Layout = Tile<HEAD_SIZE>;
  __syncwarp();  // all lanes have read the tile
#pragma unroll
  for (int m = 0; m < M16; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int n = 0; n < HEAD_SIZE / 8; ++n) {
        *reinterpret_cast<__nv_bfloat162*>(tile + Layout::offset(m * 16 + 8 * h + at.row, n) + at.column) =
            __floats2bfloat162_rn(sum[m][n][2 * h] * factor, sum[m][n][2 * h + 1] * factor);
      }
    }
  }
  __syncwarp();  // all lanes have written it
#pragma unroll 1
  for (int i = at.lane; i < M16 * 16 * Layout::chunks; i += 32) {
    const int row = i / Layout::chunks, chunk = i % Layout::chunks;
    if (row >= valid_rows) break;
    const bf16* from = tile + Layout::offset(row, chunk);
    bf16* chunk_to = to + static_cast<long long>(row) * row_stride + chunk * 8;
    if (NATIVE || (columns.copy_bytes == 16 && chunk * 8 < columns.head_size)) {
      *reinterpret_cast<uint4*>(chunk_to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int j = 0; j < 8 && chunk * 8 + j < columns.head_size; ++j) chunk_to[j] = from[j];
    }
  }
}

}  // namespace escalera::cuda::attention
