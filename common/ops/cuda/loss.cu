// Cross-entropy over a slice of the vocabulary: one block per row, which goes through the row once in each of the three
// parts.
#include "common/core/cuda/launch.h"
#include "common/ops/cuda/block_reduce.h"
#include "common/ops/cuda/kernels.h"
#include "common/ops/cuda/row_blocks.h"

namespace escalera::cuda {
namespace {

constexpr unsigned most_threads = 512, loss_threads = 256;
constexpr float minus_infinity = -__builtin_huge_valf();

/// The logits of a pack; -infinity for those beyond the valid columns, which then count for nothing.
template <class T, int WIDTH>
__device__ __forceinline__ Floats<WIDTH> valid_logits(const Pack<T, WIDTH>& pack, int column, int valid) {
  Floats<WIDTH> logits = widen(pack);
  if (column + WIDTH > valid) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) logits[i] = column + i < valid ? logits[i] : minus_infinity;
  }
  return logits;
}

/// The column of a target in this slice, or -1 if it is masked or held elsewhere.
__device__ __forceinline__ int local_target(int target, const LogitShape& shape) {
  const int column = target - shape.first;
  return target >= 0 && column >= 0 && column < shape.valid ? column : -1;
}

/// What is subtracted from the logits of a row: its maximum, but 0 where nothing is finite, so that exp(-infinity) stays 0.
__device__ __forceinline__ float shift_of(float row_max) { return row_max == minus_infinity ? 0 : row_max; }

template <class T, int WIDTH>
__global__ void __launch_bounds__(most_threads)
    row_max_kernel(const LogitShape shape, const T* __restrict__ logits, float* __restrict__ row_max) {
  __shared__ float slots[most_warps];
  float largest = minus_infinity;
  const T* row = logits + static_cast<long long>(blockIdx.x) * shape.columns;
  for_strips<WIDTH>(row, shape.valid, [&](int column, const Pack<T, WIDTH>& pack) {
    const Floats<WIDTH> values = valid_logits(pack, column, shape.valid);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) largest = fmaxf(largest, values[i]);
  });
  largest = block_max(largest, slots);
  if (threadIdx.x == 0) row_max[blockIdx.x] = largest;
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(most_threads)
    row_sums_kernel(const LogitShape shape, const T* __restrict__ logits, const int* __restrict__ targets,
                    const float* __restrict__ row_max, float* __restrict__ sums) {
  __shared__ float slots[most_warps];
  const T* row = logits + static_cast<long long>(blockIdx.x) * shape.columns;
  const float shift = shift_of(row_max[blockIdx.x]);
  float sum = 0;
  for_strips<WIDTH>(row, shape.valid, [&](int column, const Pack<T, WIDTH>& pack) {
    const Floats<WIDTH> values = valid_logits(pack, column, shape.valid);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum += exponential<T>(values[i] - shift);
  });
  sum = block_sum(sum, slots);
  if (threadIdx.x > 0) return;
  const int target = local_target(targets[blockIdx.x], shape);
  sums[blockIdx.x] = sum;
  sums[shape.rows + static_cast<long long>(blockIdx.x)] = target < 0 ? 0 : widen(row[target]) - shift;
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(most_threads)
    gradient_kernel(const LogitShape shape, T* logits, const int* __restrict__ targets, const float* __restrict__ row_max,
                    const float* __restrict__ sums, float scale) {
  T* row = logits + static_cast<long long>(blockIdx.x) * shape.columns;
  if (targets[blockIdx.x] < 0) {
    for_all_packs<WIDTH>(shape.columns, [&](int column) { store(row + column, Floats<WIDTH>{}); });
    return;
  }
  const float shift = shift_of(row_max[blockIdx.x]), inverse = 1.0f / sums[blockIdx.x], factor = inverse * scale;
  const int target = local_target(targets[blockIdx.x], shape);
  for_strips<WIDTH>(static_cast<const T*>(row), shape.columns, [&](int column, const Pack<T, WIDTH>& pack) {
    Floats<WIDTH> values = valid_logits(pack, column, shape.valid);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) values[i] = exponential<T>(values[i] - shift);
    const bool has_target = target >= column && target < column + WIDTH;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
      // softmax - 1 is formed before anything is rounded to T.
      values[i] = has_target && target == column + i ? (values[i] * inverse - 1.0f) * scale : values[i] * factor;
    }
    store(row + column, values);
  });
}

/// partial[block] = sum of the losses of 256 tokens.
__global__ void __launch_bounds__(loss_threads)
    token_losses_kernel(const int* __restrict__ targets, const float* __restrict__ sums, int rows,
                        double* __restrict__ partial) {
  __shared__ double slots[most_warps];
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  double loss = 0;
  if (t < rows && targets[t] >= 0) {
    const float exponentials = sums[t], target_logit = sums[rows + static_cast<long long>(t)];
    loss = log(static_cast<double>(exponentials)) - static_cast<double>(target_logit);
  }
  loss = block_sum(loss, slots);
  if (threadIdx.x == 0) partial[blockIdx.x] = loss;
}

/// Calls body(width, threads of a block) for the widest packs that columns and pointer allow.
template <class T, class Body>
void choose_threads(const LogitShape& shape, const T* logits, Body&& body) {
  constexpr int wide = access_bytes / sizeof(T);
  choose_width<wide>(shape.columns % wide == 0 && aligned(logits),
                     [&](auto width) { body(width, row_threads(shape.columns, decltype(width)::value, most_threads)); });
}

}  // namespace

template <class T>
void cross_entropy_row_max(const LogitShape& shape, const T* logits, float* row_max, cudaStream_t stream) {
  choose_threads(shape, logits, [&](auto width, unsigned threads) {
    launch(stream, static_cast<unsigned>(shape.rows), threads, 0, row_max_kernel<T, decltype(width)::value>, shape, logits,
           row_max);
  });
}

template <class T>
void cross_entropy_row_sums(const LogitShape& shape, const T* logits, const int* targets, const float* row_max, float* sums,
                            cudaStream_t stream) {
  choose_threads(shape, logits, [&](auto width, unsigned threads) {
    launch(stream, static_cast<unsigned>(shape.rows), threads, 0, row_sums_kernel<T, decltype(width)::value>, shape, logits,
           targets, row_max, sums);
  });
}

template <class T>
void cross_entropy_gradient(const LogitShape& shape, T* logits, const int* targets, const float* row_max, const float* sums,
                            float scale, cudaStream_t stream) {
  choose_threads(shape, static_cast<const T*>(logits), [&](auto width, unsigned threads) {
    launch(stream, static_cast<unsigned>(shape.rows), threads, 0, gradient_kernel<T, decltype(width)::value>, shape, logits,
           targets, row_max, sums, scale);
  });
}

long long cross_entropy_loss_scratch(int rows) { return blocks_for(rows, loss_threads); }

void cross_entropy_loss(const int* targets, const float* sums, int rows, double factor, double* loss, double* scratch,
                        cudaStream_t stream) {
  const unsigned blocks = blocks_for(rows, loss_threads);
  launch(stream, blocks, loss_threads, 0, token_losses_kernel, targets, sums, rows, scratch);
  add_sum(scratch, blocks, factor, loss, stream);
}

template void cross_entropy_row_max(const LogitShape&, const float*, float*, cudaStream_t);
template void cross_entropy_row_max(const LogitShape&, const bf16*, float*, cudaStream_t);
template void cross_entropy_row_sums(const LogitShape&, const float*, const int*, const float*, float*, cudaStream_t);
template void cross_entropy_row_sums(const LogitShape&, const bf16*, const int*, const float*, float*, cudaStream_t);
template void cross_entropy_gradient(const LogitShape&, float*, const int*, const float*, const float*, float,
                                     cudaStream_t);
template void cross_entropy_gradient(const LogitShape&, bf16*, const int*, const float*, const float*, float, cudaStream_t);

}  // namespace escalera::cuda
