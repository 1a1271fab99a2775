#include "tests/simulated_cuda/tests/faulty_kernels.h"

#include <cuda_instructions.h>

#include "tests/simulated_cuda/tests/start.h"

namespace faulty {
namespace {

using namespace escalera::cuda;

constexpr unsigned all = 0xffffffffu;

__global__ void sum_without_barrier_kernel(float* sums, const float* x) {
  __shared__ float partial[8];
  float sum = x[blockIdx.x * 256 + threadIdx.x];
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(all, sum, distance);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  // Here a barrier is missing.
  if (threadIdx.x == 0) {
    float total = 0.0f;
    for (int warp = 0; warp < 8; ++warp) total += partial[warp];
    sums[blockIdx.x] = total;
  }
}

__global__ void divergent_barrier_kernel(float* y) {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    y[threadIdx.x] = 1.0f;
    __syncthreads();
  }
}

__global__ void divergent_collective_kernel(float* y) {
  if (threadIdx.x < 16) {
    y[threadIdx.x] = __shfl_xor_sync(all, 1.0f, 1);
  } else {
    y[threadIdx.x] = static_cast<float>(__ballot_sync(all, 1));
  }
}

__global__ void divergent_shuffle_kernel(float* y) {
  if (threadIdx.x < 16) {
    y[threadIdx.x] = __shfl_xor_sync(all, 1.0f, 1);
  } else {
    y[threadIdx.x] = __shfl_xor_sync(all, 2.0f, 1);
  }
}

__global__ void lane_outside_of_mask_kernel(float* y) {
  y[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 1);
}

__global__ void shuffle_from_exited_lane_kernel(float* y) {
  if (threadIdx.x == 0) return;
  y[threadIdx.x] = __shfl_sync(all, 1.0f, 0);
}

__global__ void barrier_against_shuffle_kernel(float* y) {
  if (threadIdx.x == 0) __syncthreads();
  y[threadIdx.x] = __shfl_sync(all, 1.0f, 0);
}

__global__ void beyond_static_shared_kernel(float* y) {
  __shared__ float values[64];
  volatile int beyond = static_cast<int>(threadIdx.x) + 1;  // not known to the compiler, which would warn
  float* const place = values + beyond;
  *place = 1.0f;
  __syncthreads();
  y[threadIdx.x] = values[threadIdx.x];
}

__global__ void beyond_dynamic_shared_kernel(float* y) {
  DYNAMIC_SHARED(memory);
  float* const values = reinterpret_cast<float*>(memory);
  values[threadIdx.x + 1] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = values[threadIdx.x];
}

__global__ void beyond_global_kernel(float* y, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i <= count) y[i] = 1.0f;
}

__global__ void misaligned_vector_kernel(float* y, const float* x) {
  *reinterpret_cast<float4*>(y) = *reinterpret_cast<const float4*>(x + 1);
}

__global__ void follow_kernel(Pointers pointers) {
  pointers.y[0] = pointers.x[0];
}

__global__ void copy_without_wait_kernel(float* y, const float* x) {
  __shared__ __align__(16) float buffer[128];
  const int first = static_cast<int>(threadIdx.x) * 4;
  copy_async<16>(buffer + first, x + first, true);
  commit_copies();
  __syncthreads();
  for (int i = first; i < first + 4; ++i) y[i] = buffer[127 - i];
  wait_copies<0>();
}

__global__ void copy_refilled_too_soon_kernel(float* y, const float* x) {
  __shared__ __align__(16) float buffer[64];
  const int first = static_cast<int>(threadIdx.x) * 4;
  copy_async<16>(buffer + first, x + first, true);
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  copy_async<16>(buffer + first, x + 64 + first, true);  // the buffer is still being read below
  commit_copies();
  for (int i = first; i < first + 4; ++i) y[i] = buffer[63 - i];
  __syncthreads();
  wait_copies<0>();
  __syncthreads();
  for (int i = first; i < first + 4; ++i) y[64 + i] = buffer[63 - i];
}

__global__ void exit_with_copies_kernel(const float* x) {
  __shared__ __align__(16) float buffer[128];
  copy_async<16>(buffer + threadIdx.x * 4, x + threadIdx.x * 4, true);
  commit_copies();
}

__global__ void misaligned_copy_kernel(float* y, const float* x) {
  __shared__ __align__(16) float buffer[4];
  copy_async<16>(buffer, x + 1, true);
  commit_copies();
  wait_copies<0>();
  y[0] = buffer[0];
}

__global__ void half_a_product_kernel(float* y) {
  if (threadIdx.x >= 16) return;
  float d[4] = {};
  const uint32_t a[4] = {};
  multiply_accumulate(d, a, 0, 0);
  y[threadIdx.x] = d[0];
}

}  // namespace

cudaError_t block_sums_without_barrier(float* sums, const float* x, int blocks, cudaStream_t stream) {
  return start(stream, static_cast<unsigned>(blocks), 256, 0, sum_without_barrier_kernel, sums, x);
}
cudaError_t divergent_barrier(float* y, cudaStream_t stream) {
  return start(stream, 1, 64, 0, divergent_barrier_kernel, y);
}
cudaError_t divergent_collective(float* y, cudaStream_t stream) {
  return start(stream, 1, 32, 0, divergent_collective_kernel, y);
}
cudaError_t divergent_shuffle(float* y, cudaStream_t stream) {
  return start(stream, 1, 32, 0, divergent_shuffle_kernel, y);
}
cudaError_t lane_outside_of_mask(float* y, cudaStream_t stream) {
  return start(stream, 1, 32, 0, lane_outside_of_mask_kernel, y);
}
cudaError_t shuffle_from_exited_lane(float* y, cudaStream_t stream) {
  return start(stream, 1, 32, 0, shuffle_from_exited_lane_kernel, y);
}
cudaError_t barrier_against_shuffle(float* y, cudaStream_t stream) {
  return start(stream, 1, 32, 0, barrier_against_shuffle_kernel, y);
}
cudaError_t beyond_static_shared(float* y, cudaStream_t stream) {
  return start(stream, 1, 64, 0, beyond_static_shared_kernel, y);
}
cudaError_t beyond_dynamic_shared(float* y, cudaStream_t stream) {
  return start(stream, 1, 64, 64 * sizeof(float), beyond_dynamic_shared_kernel, y);
}
cudaError_t beyond_global(float* y, int count, cudaStream_t stream) {
  return start(stream, static_cast<unsigned>(count) / 64 + 1, 64, 0, beyond_global_kernel, y, count);
}
cudaError_t misaligned_vector(float* y, const float* x, cudaStream_t stream) {
  return start(stream, 1, 1, 0, misaligned_vector_kernel, y, x);
}
cudaError_t follow(const Pointers& pointers, cudaStream_t stream) {
  return start(stream, 1, 1, 0, follow_kernel, pointers);
}
cudaError_t copy_without_wait(float* y, const float* x, cudaStream_t stream) {
  return start(stream, 1, 32, 0, copy_without_wait_kernel, y, x);
}
cudaError_t copy_refilled_too_soon(float* y, const float* x, cudaStream_t stream) {
  return start(stream, 1, 16, 0, copy_refilled_too_soon_kernel, y, x);
}
cudaError_t exit_with_copies(const float* x, cudaStream_t stream) {
  return start(stream, 1, 32, 0, exit_with_copies_kernel, x);
}
cudaError_t misaligned_copy(float* y, const float* x, cudaStream_t stream) {
  return start(stream, 1, 1, 0, misaligned_copy_kernel, y, x);
}
cudaError_t half_a_product(float* y, cudaStream_t stream) {
  return start(stream, 1, 32, 0, half_a_product_kernel, y);
}

}  // namespace faulty
