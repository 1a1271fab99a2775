// Kernels that are wrong, each in one way, and the way is in its name. All run one block or a few on `stream`.
#pragma once

#include <cuda_runtime.h>

namespace faulty {

/// sums[b] = the sum of block b's 256 elements, but nobody waits before the partial sums are added.
cudaError_t block_sums_without_barrier(float* sums, const float* x, int blocks, cudaStream_t stream);
/// The first 40 of 64 threads wait at one barrier, the others at another.
cudaError_t divergent_barrier(float* y, cudaStream_t stream);
/// The lower half of a warp shuffles, the upper half votes.
cudaError_t divergent_collective(float* y, cudaStream_t stream);
/// Both halves of a warp shuffle with all lanes in the mask, but not in the same place.
cudaError_t divergent_shuffle(float* y, cudaStream_t stream);
/// A lane shuffles with a mask that it is not in.
cudaError_t lane_outside_of_mask(float* y, cudaStream_t stream);
/// Lane 0 has exited when lane 1 reads from it.
cudaError_t shuffle_from_exited_lane(float* y, cudaStream_t stream);
/// One lane waits at the barrier, the others for it in a shuffle.
cudaError_t barrier_against_shuffle(float* y, cudaStream_t stream);
/// Element `threads` of a static array with so many.
cudaError_t beyond_static_shared(float* y, cudaStream_t stream);
/// The same in dynamic shared memory.
cudaError_t beyond_dynamic_shared(float* y, cudaStream_t stream);
/// y[count], of `count` elements.
cudaError_t beyond_global(float* y, int count, cudaStream_t stream);
/// y[0..3] = x[1..4] as one float4, which is not aligned.
cudaError_t misaligned_vector(float* y, const float* x, cudaStream_t stream);
/// y[0] = the number that lies at x[0], read through the pointer in the struct.
struct Pointers {
  float* y;
  const float* x;
};
cudaError_t follow(const Pointers& pointers, cudaStream_t stream);

/// y = x (32 x 4 floats) through asynchronous copies, which are not waited for.
cudaError_t copy_without_wait(float* y, const float* x, cudaStream_t stream);
/// The same in two halves through one buffer, which gets the second half while the first is still read.
cudaError_t copy_refilled_too_soon(float* y, const float* x, cudaStream_t stream);
/// Copies are begun and never waited for.
cudaError_t exit_with_copies(const float* x, cudaStream_t stream);
/// 16 bytes from an address that is no multiple of 16.
cudaError_t misaligned_copy(float* y, const float* x, cudaStream_t stream);
/// Only half of a warp comes to a tensor-core product.
cudaError_t half_a_product(float* y, cudaStream_t stream);

}  // namespace faulty
