// The instructions that CUDA C++ has no words for: tensor cores, the loads that feed them, and copies that run in the
// background. A kernel includes this as <cuda_instructions.h>; in simulated CUDA (tests/simulated_cuda) a header of the same
// name does the same work on the CPU, so that kernels know no difference. The names in brackets are those of the PTX ISA.
// defines: DYNAMIC_SHARED, multiply_accumulate(), load_matrices(), load_matrices_transposed(), copy_async(),
//          commit_copies(), wait_copies(), exp2_fast()
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

/// Declares `unsigned char* name`: the block's dynamic shared memory, aligned to 128 bytes.
#define DYNAMIC_SHARED(name)                                                \
  extern __shared__ __align__(128) unsigned char dynamic_shared_of_block[]; \
  unsigned char* const name = dynamic_shared_of_block

namespace escalera::cuda {

/// The 32-bit address inside shared memory that PTX wants.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// d [16, 8] += a [16, 16] * b [16, 8], bfloat16 operands, float32 sums, all in the registers of one warp (mma.m16n8k16).
/// With g = lane / 4 and c = 2 (lane % 4), a lane holds
///   d:  (g, c), (g, c+1), (g+8, c), (g+8, c+1)
///   a:  (g, c..c+1), (g+8, c..c+1), (g, c+8..c+9), (g+8, c+8..c+9), two values to a register, the first one low
///   b:  (c..c+1, g), (c+8..c+9, g)
__device__ __forceinline__ void multiply_accumulate(float (&d)[4], const std::uint32_t (&a)[4],
                                                    std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Loads four 8x8 matrices from shared memory (ldmatrix.x4). Lane i points to row i % 8 of matrix i / 8, 16 bytes, aligned;
/// r[m] becomes elements (lane / 4, 2 (lane % 4)) and the one after it of matrix m.
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], const __nv_bfloat16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

/// The same with each 8x8 matrix transposed on the way.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&r)[4], const __nv_bfloat16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

/// Starts copying BYTES, 16 or 4, from global to shared memory (cp.async); both must be aligned to that. Unless `inside`,
/// nothing is read and zeros are written. The bytes are there for this thread after wait_copies(), for the block after a
/// __syncthreads() behind it.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool inside) {
  static_assert(BYTES == 16 || BYTES == 4);
  const int bytes_read = inside ? BYTES : 0;
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(bytes_read)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(bytes_read)
                 : "memory");
  }
}

/// Closes a group: the copies that this thread has started since the last one.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most PENDING of this thread's groups, the youngest, are still under way.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/// 2^x with a relative error of about 2^-22; results below 2^-126 are 0, 2^-infinity is 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace escalera::cuda
