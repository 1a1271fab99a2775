// Sums, conversions and norms of flat spans.
#include <algorithm>

#include "common/core/cuda/launch.h"
#include "common/ops/cuda/block_reduce.h"
#include "common/ops/cuda/kernels.h"
#include "common/ops/cuda/vector.h"

namespace escalera::cuda {
namespace {

constexpr unsigned threads_per_block = 256;

template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_per_block) add_kernel(const T* a, const T* b, T* out, long long count) {
  for_pack<WIDTH>(count, [&](long long i, auto width) {
    constexpr int N = decltype(width)::value;
    Floats<N> sum = load<N>(a + i);
    const Floats<N> term = load<N>(b + i);
#pragma unroll
    for (int j = 0; j < N; j++) sum[j] += term[j];
    store(out + i, sum);
  });
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_per_block) scale_kernel(T* x, float factor, long long count) {
  for_pack<WIDTH>(count, [&](long long i, auto width) {
    constexpr int N = decltype(width)::value;
    Floats<N> values = load<N>(x + i);
#pragma unroll
    for (int j = 0; j < N; j++) values[j] *= factor;
    store(x + i, values);
  });
}

/// By way of float32 unless both sides are wider: float64 becomes bfloat16 in two roundings, as on the host.
template <class To, class From>
__device__ __forceinline__ To cast(From value) {
  if constexpr (std::is_same_v<From, bf16>) {
    return static_cast<To>(widen(value));
  } else if constexpr (std::is_same_v<To, bf16>) {
    return narrow<bf16>(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class From, class To, int WIDTH>
__global__ void __launch_bounds__(threads_per_block)
    convert_kernel(const From* __restrict__ source, To* __restrict__ destination, long long count) {
  for_pack<WIDTH>(count, [&](long long i, auto width) {
    constexpr int N = decltype(width)::value;
    const Pack<From, N> from = load_pack<N>(source + i);
    Pack<To, N> to;
#pragma unroll
    for (int j = 0; j < N; j++) to.values[j] = cast<To>(from.values[j]);
    store_pack(destination + i, to);
  });
}

// A span is cut into as many parts as its length asks for, so that the order of the sum is the same on every device.
constexpr long long most_parts = 1024, smallest_part = 4096;

long long part_size(long long count) {
  const long long size = std::max(smallest_part, (count + most_parts - 1) / most_parts);
  return (size + access_bytes - 1) / access_bytes * access_bytes;  // parts begin at whole packs
}

/// partial[block] = sum of x^2 over the block's part. In double: the sum over millions of gradients decides whether they
/// are clipped.
template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_per_block)
    squared_norm_kernel(const T* __restrict__ x, long long count, long long part, double* __restrict__ partial) {
  __shared__ double slots[most_warps];
  const long long begin = blockIdx.x * part, end = min(begin + part, count);
  const long long stride = static_cast<long long>(blockDim.x) * WIDTH;
  double sum = 0;
#pragma unroll 4
  for (long long i = begin + static_cast<long long>(threadIdx.x) * WIDTH; i < end; i += stride) {
    if (i + WIDTH <= end) {
      const Floats<WIDTH> values = load<WIDTH>(x + i);
#pragma unroll
      for (int j = 0; j < WIDTH; j++) sum += static_cast<double>(values[j]) * static_cast<double>(values[j]);
    } else {
#pragma unroll 1
      for (long long j = i; j < end; j++) sum += static_cast<double>(widen(x[j])) * static_cast<double>(widen(x[j]));
    }
  }
  sum = block_sum(sum, slots);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(threads_per_block)
    add_sum_kernel(const double* __restrict__ terms, long long count, double factor, double* __restrict__ result) {
  __shared__ double slots[most_warps];
  double sum = 0;
  for (long long i = threadIdx.x; i < count; i += blockDim.x) sum += terms[i];
  sum = block_sum(sum, slots);
  if (threadIdx.x == 0) *result += factor * sum;
}

/// Blocks for one pack of `width` per thread.
unsigned blocks_of_packs(long long count, int width) {
  return blocks_for(count, static_cast<long long>(threads_per_block) * width);
}

}  // namespace

template <class T>
void add(const T* a, const T* b, T* out, long long count, cudaStream_t stream) {
  choose_width<access_bytes / sizeof(T)>(aligned(a) && aligned(b) && aligned(out), [&](auto width) {
    constexpr int WIDTH = decltype(width)::value;
    launch(stream, blocks_of_packs(count, WIDTH), threads_per_block, 0, add_kernel<T, WIDTH>, a, b, out, count);
  });
}

template <class T>
void scale(T* x, float factor, long long count, cudaStream_t stream) {
  choose_width<access_bytes / sizeof(T)>(aligned(x), [&](auto width) {
    constexpr int WIDTH = decltype(width)::value;
    launch(stream, blocks_of_packs(count, WIDTH), threads_per_block, 0, scale_kernel<T, WIDTH>, x, factor, count);
  });
}

template <class From, class To>
void convert(const From* source, To* destination, long long count, cudaStream_t stream) {
  constexpr int wide = access_bytes / static_cast<int>(std::max(sizeof(From), sizeof(To)));
  choose_width<wide>(aligned(source, wide * sizeof(From)) && aligned(destination, wide * sizeof(To)), [&](auto width) {
    constexpr int WIDTH = decltype(width)::value;
    launch(stream, blocks_of_packs(count, WIDTH), threads_per_block, 0, convert_kernel<From, To, WIDTH>, source,
           destination, count);
  });
}

long long squared_norm_scratch(long long count) { return blocks_for(count, part_size(count)); }

template <class T>
void squared_norm(const T* x, long long count, double* sum, double* scratch, cudaStream_t stream) {
  const long long part = part_size(count);
  const unsigned parts = blocks_for(count, part);
  choose_width<access_bytes / sizeof(T)>(aligned(x), [&](auto width) {
    launch(stream, parts, threads_per_block, 0, squared_norm_kernel<T, decltype(width)::value>, x, count, part, scratch);
  });
  add_sum(scratch, parts, 1, sum, stream);
}

void add_sum(const double* terms, long long count, double factor, double* result, cudaStream_t stream) {
  if (count > 0) launch(stream, 1, threads_per_block, 0, add_sum_kernel, terms, count, factor, result);
}

template void add(const float*, const float*, float*, long long, cudaStream_t);
template void add(const bf16*, const bf16*, bf16*, long long, cudaStream_t);
template void scale(float*, float, long long, cudaStream_t);
template void scale(bf16*, float, long long, cudaStream_t);
template void convert(const float*, bf16*, long long, cudaStream_t);
template void convert(const float*, double*, long long, cudaStream_t);
template void convert(const bf16*, float*, long long, cudaStream_t);
template void convert(const bf16*, double*, long long, cudaStream_t);
template void convert(const double*, float*, long long, cudaStream_t);
template void convert(const double*, bf16*, long long, cudaStream_t);
template void squared_norm(const float*, long long, double*, double*, cudaStream_t);
template void squared_norm(const bf16*, long long, double*, double*, cudaStream_t);

}  // namespace escalera::cuda
