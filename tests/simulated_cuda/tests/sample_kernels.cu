#include "tests/simulated_cuda/tests/sample_kernels.h"

#include <cuda_instructions.h>

#include "tests/simulated_cuda/tests/start.h"

namespace sample {
namespace {

using namespace escalera::cuda;

__global__ void scale_kernel(float* __restrict__ y, const float* __restrict__ x, float factor, long long count) {
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    y[i] = factor * __ldg(x + i);
}

__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS) block_sum_kernel(float* sums, const float* x) {
  __shared__ float partial[THREADS / 32];
  const float sum = warp_sum(x[blockIdx.x * THREADS + threadIdx.x]);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.0f;
    for (int warp = 0; warp < THREADS / 32; ++warp) total += partial[warp];
    sums[blockIdx.x] = total;
  }
}

__global__ void transpose_kernel(float* y, const float* x, int rows, int columns) {
  __shared__ float tile[16][17];
  const int tx = static_cast<int>(threadIdx.x), ty = static_cast<int>(threadIdx.y);
  int column = static_cast<int>(blockIdx.x) * 16 + tx, row = static_cast<int>(blockIdx.y) * 16 + ty;
  if (row < rows && column < columns) tile[ty][tx] = x[row * columns + column];
  __syncthreads();
  column = static_cast<int>(blockIdx.y) * 16 + tx;
  row = static_cast<int>(blockIdx.x) * 16 + ty;
  if (row < columns && column < rows) y[row * rows + column] = tile[tx][ty];
}

__global__ void reverse_kernel(float* y, const float* x) {
  DYNAMIC_SHARED(memory);
  float* const values = reinterpret_cast<float*>(memory);
  values[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

__global__ void histogram_kernel(unsigned* counts, const unsigned* x, int count, int buckets) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) atomicAdd(&counts[x[i] % static_cast<unsigned>(buckets)], 1u);
}

__global__ void prefix_sum_kernel(int* y, const int* x, int count) {
  __shared__ int values[2][64];
  const int i = static_cast<int>(threadIdx.x);
  if (i >= count) return;
  int now = 0;
  values[now][i] = x[i];
  for (int distance = 1; distance < count; distance *= 2) {
    __syncthreads();
    values[1 - now][i] = values[now][i] + (i >= distance ? values[now][i - distance] : 0);
    now = 1 - now;
  }
  y[i] = values[now][i];
}

__global__ void half_warp_kernel(int* y, const int* x) {
  const unsigned lane = threadIdx.x;
  int value = x[lane];
  if (lane < 16) {
    for (int distance = 8; distance > 0; distance /= 2)
      value += __shfl_down_sync(0x0000ffffu, value, static_cast<unsigned>(distance), 16);
    value = __shfl_sync(0x0000ffffu, value, 0);
  } else {
    for (int distance = 8; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffff0000u, value, distance);
  }
  y[lane] = value;
}

__global__ void vote_kernel(Votes* result, const int* x) {
  const int value = x[threadIdx.x];
  const int predicate = value > 0;
  Votes votes;
  votes.ballot = __ballot_sync(0xffffffffu, predicate);
  votes.any = __any_sync(0xffffffffu, predicate);
  votes.all = __all_sync(0xffffffffu, predicate);
  votes.sum = __reduce_add_sync(0xffffffffu, value);
  votes.least = __reduce_min_sync(0xffffffffu, value);
  votes.reduced_or = __reduce_or_sync(0xffffffffu, static_cast<unsigned>(value));
  votes.count = __syncthreads_count(predicate);
  votes.block_or = __syncthreads_or(predicate);
  votes.block_and = __syncthreads_and(predicate);
  result[threadIdx.x] = votes;
}

__global__ void axpy_kernel(Axpy parameters) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < parameters.count) parameters.y[i] += parameters.a * parameters.x[i];
}

// One warp makes 16 x 16 of c. Tiles of 16 x 16 numbers, whose two chunks of 16 bytes per row are swapped in every other group
// of four rows, so that eight rows lie in different banks.
constexpr int tile = 16 * 16;

__device__ int place(int row, int chunk) {
  return row * 16 + ((chunk ^ (row >> 2)) & 1) * 8;
}

/// Rows [0, 16) of 16 columns each; two chunks per row, one per lane.
__device__ void load_tile(__nv_bfloat16* to, const __nv_bfloat16* from, int row_stride) {
  const int row = static_cast<int>(threadIdx.x) / 2, chunk = static_cast<int>(threadIdx.x) % 2;
  copy_async<16>(to + place(row, chunk), from + row * row_stride + chunk * 8, true);
}

template <bool B_BY_ROWS>
__global__ void product_kernel(float* c, const __nv_bfloat16* a, const __nv_bfloat16* b, int n, int k) {
  DYNAMIC_SHARED(memory);
  auto* const tiles = reinterpret_cast<__nv_bfloat16*>(memory);  // [buffer][a, b]
  const int lane = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.y) * 16,
            column = static_cast<int>(blockIdx.x) * 16;
  const auto load = [&](int step) {
    __nv_bfloat16* const to = tiles + step % 2 * 2 * tile;
    load_tile(to, a + row * k + step * 16, k);
    load_tile(to + tile, B_BY_ROWS ? b + step * 16 * n + column : b + column * k + step * 16, B_BY_ROWS ? n : k);
    commit_copies();
  };
  float sums[2][4] = {};
  const int steps = k / 16;
  load(0);
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) {
      load(step + 1);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncwarp();
    const __nv_bfloat16* const at = tiles + step % 2 * 2 * tile;
    uint32_t left[4], right[4];
    // Matrices of a: rows 0-7 and 8-15 of the left half, then of the right half.
    load_matrices(left, at + place(lane % 16, lane / 16));
    if (B_BY_ROWS) {
      load_matrices_transposed(right, at + tile + place(lane % 16, lane / 16));
    } else {
      load_matrices(right, at + tile + place(lane % 8 + lane / 16 * 8, lane / 8 % 2));
    }
    multiply_accumulate(sums[0], left, right[0], right[1]);
    multiply_accumulate(sums[1], left, right[2], right[3]);
    __syncwarp();  // before the next copies overwrite what this step has read
  }
  const int group = lane / 4, pair = lane % 4 * 2;
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 4; ++i) c[(row + group + i / 2 * 8) * n + column + half * 8 + pair + i % 2] = sums[half][i];
  }
}

__global__ void shared_memory_kernel(float* y, int bytes) {
  DYNAMIC_SHARED(memory);
  for (int i = 0; i < bytes; ++i) memory[i] = 1;
  y[0] = static_cast<float>(memory[bytes - 1]);
}

unsigned blocks_for(long long items, int per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace

cudaError_t scale(float* y, const float* x, float factor, long long count, cudaStream_t stream) {
  return start(stream, 3, 128, 0, scale_kernel, y, x, factor, count);
}
cudaError_t block_sums(float* sums, const float* x, int blocks, cudaStream_t stream) {
  return start(stream, static_cast<unsigned>(blocks), 256, 0, block_sum_kernel<256>, sums, x);
}
cudaError_t transpose(float* y, const float* x, int rows, int columns, cudaStream_t stream) {
  return start(stream, {blocks_for(columns, 16), blocks_for(rows, 16)}, {16, 16}, 0, transpose_kernel, y, x, rows, columns);
}
cudaError_t reverse(float* y, const float* x, int count, cudaStream_t stream) {
  const auto threads = static_cast<unsigned>(count);
  return start(stream, 1, threads, threads * sizeof(float), reverse_kernel, y, x);
}
cudaError_t histogram(unsigned* counts, const unsigned* x, int count, int buckets, cudaStream_t stream) {
  return start(stream, blocks_for(count, 64), 64, 0, histogram_kernel, counts, x, count, buckets);
}
cudaError_t prefix_sums(int* y, const int* x, int count, cudaStream_t stream) {
  return start(stream, 1, 64, 0, prefix_sum_kernel, y, x, count);
}
cudaError_t half_warp_sums(int* y, const int* x, cudaStream_t stream) {
  return start(stream, 1, 32, 0, half_warp_kernel, y, x);
}
cudaError_t votes(Votes* result, const int* x, cudaStream_t stream) {
  return start(stream, 1, 64, 0, vote_kernel, result, x);
}
cudaError_t axpy(const Axpy& parameters, cudaStream_t stream) {
  return start(stream, blocks_for(parameters.count, 32), 32, 0, axpy_kernel, parameters);
}
cudaError_t tensor_core_product(float* c, const __nv_bfloat16* a, const __nv_bfloat16* b, int m, int n, int k,
                                bool b_by_rows, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(n / 16), static_cast<unsigned>(m / 16));
  const std::size_t shared = 4 * tile * sizeof(__nv_bfloat16);
  return b_by_rows ? start(stream, grid, 32, shared, product_kernel<true>, c, a, b, n, k)
                   : start(stream, grid, 32, shared, product_kernel<false>, c, a, b, n, k);
}
cudaError_t use_shared_memory(float* y, int bytes, bool opt_in, cudaStream_t stream) {
  if (opt_in) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(shared_memory_kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
  }
  return start(stream, 1, 1, static_cast<std::size_t>(bytes), shared_memory_kernel, y, bytes);
}

}  // namespace sample
