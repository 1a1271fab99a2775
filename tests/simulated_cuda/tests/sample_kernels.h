// Kernels that are right, and use every part of the execution model. All run on `stream` of the current device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace sample {

/// y = factor x, by a grid that is smaller than the data.
cudaError_t scale(float* y, const float* x, float factor, long long count, cudaStream_t stream);
/// sums[b] = the sum of block b's 256 elements: shuffles, static shared memory, a barrier.
cudaError_t block_sums(float* sums, const float* x, int blocks, cudaStream_t stream);
/// y (columns x rows) = x (rows x columns) transposed, by tiles in shared memory and blocks of two dimensions.
cudaError_t transpose(float* y, const float* x, int rows, int columns, cudaStream_t stream);
/// y = x backwards, `count` at most 1024, through dynamic shared memory.
cudaError_t reverse(float* y, const float* x, int count, cudaStream_t stream);
/// counts[x % buckets] is counted by atomics; counts must start with zeros.
cudaError_t histogram(unsigned* counts, const unsigned* x, int count, int buckets, cudaStream_t stream);
/// y[i] = sum of x[0..i], for 64 threads, of which those beyond `count` exit at once and the others meet at barriers.
cudaError_t prefix_sums(int* y, const int* x, int count, cudaStream_t stream);
/// Both halves of a warp shuffle for themselves, with masks of their own; y = sum over the half warp.
cudaError_t half_warp_sums(int* y, const int* x, cudaStream_t stream);

struct Votes {
  unsigned ballot, reduced_or;
  int any, all, count, block_or, block_and, sum, least;
};
/// The votes of 64 threads whose predicate is x[thread] > 0.
cudaError_t votes(Votes* result, const int* x, cudaStream_t stream);

/// Arguments in a struct, one of them a pointer.
struct Axpy {
  float* y;
  const float* x;
  float a;
  int count;
};
cudaError_t axpy(const Axpy& parameters, cudaStream_t stream);

/// c (m x n, float32) = a (m x k) b, with b given as n x k, or as k x n if `b_by_rows`. Tensor cores, ldmatrix, and
/// asynchronous copies into two buffers. m, n and k are multiples of 16.
cudaError_t tensor_core_product(float* c, const __nv_bfloat16* a, const __nv_bfloat16* b, int m, int n, int k,
                                bool b_by_rows, cudaStream_t stream);

/// y[0] = 1, with so much dynamic shared memory; with `opt_in` the kernel is allowed it first.
cudaError_t use_shared_memory(float* y, int bytes, bool opt_in, cudaStream_t stream);

}  // namespace sample
