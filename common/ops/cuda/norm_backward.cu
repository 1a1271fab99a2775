// RMSNorm backward in one pass over the rows: a block takes some consecutive rows, writes their dx, and keeps the sums of
// its columns for dw; then the sums of all blocks are added up.
#include <algorithm>

#include "common/core/cuda/launch.h"
#include "common/ops/cuda/block_reduce.h"
#include "common/ops/cuda/kernels.h"
#include "common/ops/cuda/row_blocks.h"

namespace escalera::cuda {
namespace {

// Two packs of each of dy, x and residual, and two of sums, are what fits in the registers of a thread beside others.
constexpr unsigned most_threads = 512;
constexpr int packs = 2;

// Four blocks for each of the 132 multiprocessors of an H100, more than four on any smaller GPU. The number follows from
// the rows alone, so that every device adds in the same order.
constexpr int most_blocks = 528, fewest_rows = 4;

int rows_per_block(int rows) { return std::max(fewest_rows, (rows + most_blocks - 1) / most_blocks); }
int block_count(int rows) { return (rows + rows_per_block(rows) - 1) / rows_per_block(rows); }

/// The operands; see kernels.h. Row i of `partial` gets block i's part of dw.
template <class T>
struct NormBackwardCall {
  const T *dy, *x;
  const float* rstd;
  const T *w, *residual;
  T* dx;
  float* partial;
  int rows, rows_per_block, columns;
};

/// With n = x * rstd: dx = rstd * (dy * w - n * mean(dy * w * n)) + residual, dw += dy * n.
template <int WIDTH>
__device__ __forceinline__ Floats<WIDTH> gradient(const Floats<WIDTH>& dy, const Floats<WIDTH>& x, const Floats<WIDTH>& w,
                                                  float rstd, float mean, Floats<WIDTH>& dw) {
  Floats<WIDTH> dx;
#pragma unroll
  for (int i = 0; i < WIDTH; i++) {
    const float normalised = x[i] * rstd;
    dx[i] = (dy[i] * w[i] - normalised * mean) * rstd;
    dw[i] += dy[i] * normalised;
  }
  return dx;
}

template <int WIDTH>
__device__ __forceinline__ float products(const Floats<WIDTH>& dy, const Floats<WIDTH>& x, const Floats<WIDTH>& w) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < WIDTH; i++) sum += dy[i] * w[i] * x[i];
  return sum;
}

template <int WIDTH>
__device__ __forceinline__ void add_to(Floats<WIDTH>& sum, const Floats<WIDTH>& term) {
#pragma unroll
  for (int i = 0; i < WIDTH; i++) sum[i] += term[i];
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(most_threads) norm_backward_kernel(const NormBackwardCall<T> call) {
  __shared__ float slots[2][most_warps];  // taken in turn: a warp may still read one when another is in the next row
  const int columns = call.columns;
  const int first = static_cast<int>(blockIdx.x) * call.rows_per_block, last = min(first + call.rows_per_block, call.rows);
  Floats<WIDTH> dw[packs] = {};
  for (int row = first; row < last; row++) {
    const long long start = static_cast<long long>(row) * columns;
    // All that the row needs is asked for before the block waits for the sum.
    Pack<T, WIDTH> dy[packs], x[packs], residual[packs];
    for_kept_packs<WIDTH, packs>(columns, [&](int column, int slot) {
      dy[slot] = load_pack<WIDTH>(call.dy + start + column);
      x[slot] = load_pack<WIDTH>(call.x + start + column);
      if (call.residual) residual[slot] = load_pack<WIDTH>(call.residual + start + column);
    });
    float sum = 0;
    for_kept_packs<WIDTH, packs>(columns, [&](int column, int slot) {
      sum += products(widen(dy[slot]), widen(x[slot]), load<WIDTH>(call.w + column));
    });
    const float rstd = call.rstd[row];
    const float mean = block_sum(sum, slots[row % 2]) * rstd / static_cast<float>(columns);
    for_kept_packs<WIDTH, packs>(columns, [&](int column, int slot) {
      Floats<WIDTH> dx = gradient(widen(dy[slot]), widen(x[slot]), load<WIDTH>(call.w + column), rstd, mean, dw[slot]);
      if (call.residual) add_to(dx, widen(residual[slot]));
      store(call.dx + start + column, dx);
    });
  }
  float* partial = call.partial + static_cast<long long>(blockIdx.x) * columns;
  for_kept_packs<WIDTH, packs>(columns, [&](int column, int slot) { store(partial + column, dw[slot]); });
}

/// For rows that are too long for registers: dy and x come twice, the second time from the cache, and the sums of the
/// columns wait in memory.
template <class T, int WIDTH>
__global__ void __launch_bounds__(most_threads) long_norm_backward_kernel(const NormBackwardCall<T> call) {
  __shared__ float slots[2][most_warps];
  const int columns = call.columns;
  const int first = static_cast<int>(blockIdx.x) * call.rows_per_block, last = min(first + call.rows_per_block, call.rows);
  float* partial = call.partial + static_cast<long long>(blockIdx.x) * columns;
  for (int row = first; row < last; row++) {
    const long long start = static_cast<long long>(row) * columns;
    float sum = 0;
    for_all_packs<WIDTH>(columns, [&](int column) {
      sum += products(load<WIDTH>(call.dy + start + column), load<WIDTH>(call.x + start + column),
                      load<WIDTH>(call.w + column));
    });
    const float rstd = call.rstd[row];
    const float mean = block_sum(sum, slots[row % 2]) * rstd / static_cast<float>(columns);
    for_all_packs<WIDTH>(columns, [&](int column) {
      Floats<WIDTH> dw{};
      if (row > first) dw = load<WIDTH>(partial + column);
      Floats<WIDTH> dx = gradient(load<WIDTH>(call.dy + start + column), load<WIDTH>(call.x + start + column),
                                  load<WIDTH>(call.w + column), rstd, mean, dw);
      if (call.residual) add_to(dx, load<WIDTH>(call.residual + start + column));
      store(call.dx + start + column, dx);
      store(partial + column, dw);
    });
  }
}

constexpr int sum_columns = 32, sum_rows = 16;

/// sums[column] += all rows of `partial`: a block takes 32 columns, and each of its warps every 16th row.
__global__ void __launch_bounds__(sum_columns* sum_rows)
    column_sums_kernel(const float* __restrict__ partial, int rows, int columns, float* __restrict__ sums) {
  __shared__ float warp_sums[sum_rows][sum_columns];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int column = static_cast<int>(blockIdx.x) * sum_columns + x;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (int row = y; row < rows; row += sum_rows) sum += partial[static_cast<long long>(row) * columns + column];
  }
  warp_sums[y][x] = sum;
  __syncthreads();
  if (y > 0 || column >= columns) return;
  float total = warp_sums[0][x];
#pragma unroll
  for (int i = 1; i < sum_rows; i++) total += warp_sums[i][x];
  sums[column] += total;
}

}  // namespace

long long rms_norm_backward_scratch(int rows, int columns) { return static_cast<long long>(block_count(rows)) * columns; }

template <class T>
void rms_norm_backward(const T* dy, const T* x, const float* rstd, const T* w, const T* residual, T* dx, float* dw,
                       int rows, int columns, float* scratch, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return;
  constexpr int wide = access_bytes / sizeof(T);
  const bool is_wide = columns % wide == 0 && aligned(dy) && aligned(x) && aligned(w) && aligned(residual) && aligned(dx);
  const NormBackwardCall<T> call{dy, x, rstd, w, residual, dx, scratch, rows, rows_per_block(rows), columns};
  const int blocks = block_count(rows);
  choose_width<wide>(is_wide, [&](auto width) {
    constexpr int WIDTH = decltype(width)::value;
    const auto kernel = fits_in_registers(columns, WIDTH, most_threads, packs) ? norm_backward_kernel<T, WIDTH>
                                                                        : long_norm_backward_kernel<T, WIDTH>;
    launch(stream, static_cast<unsigned>(blocks), row_threads(columns, WIDTH, most_threads, packs), 0, kernel, call);
  });
  launch(stream, blocks_for(columns, sum_columns), dim3(sum_columns, sum_rows), 0, column_sums_kernel, scratch, blocks,
         columns, dw);
}

template void rms_norm_backward(const float*, const float*, const float*, const float*, const float*, float*, float*, int,
                                int, float*, cudaStream_t);
template void rms_norm_backward(const bf16*, const bf16*, const float*, const bf16*, const bf16*, bf16*, float*, int, int,
                                float*, cudaStream_t);

}  // namespace escalera::cuda
