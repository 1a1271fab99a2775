// The rotary embedding: one block per row splits (or merges) the heads of q, k and v and rotates those of q and k.
#include <algorithm>

#include "common/core/cuda/launch.h"
#include "common/ops/cuda/kernels.h"
#include "common/ops/cuda/vector.h"

namespace escalera::cuda {
namespace {

constexpr int threads_per_block = 256;

/// (u cos a - w sin a, w cos a + u sin a) for each pair of a first half's u with a second half's w.
template <class T, int WIDTH>
__device__ __forceinline__ void rotate(const T* from, T* to, int half, const Floats<WIDTH>& cosine,
                                       const Floats<WIDTH>& sine) {
  const Floats<WIDTH> u = load<WIDTH>(from), w = load<WIDTH>(from + half);
  Floats<WIDTH> first, second;
#pragma unroll
  for (int i = 0; i < WIDTH; i++) {
    first[i] = u[i] * cosine[i] - w[i] * sine[i];
    second[i] = w[i] * cosine[i] + u[i] * sine[i];
  }
  store(to, first);
  store(to + half, second);
}

/// The split, or with MERGE its inverse: then `qkv` is the output, and angles are negative. threadIdx.x counts packs of
/// half a head, threadIdx.y heads: a thread keeps the angles of its packs for all the heads that it treats.
template <class T, int WIDTH, bool MERGE>
__global__ void __launch_bounds__(threads_per_block) rope_kernel(const RopeCall call, T* qkv, T* q, T* k, T* v) {
  const long long row = blockIdx.x;
  const int size = call.head_size, half = size / 2;
  qkv += row * (call.heads + 2 * call.kv_heads) * size;
  q += row * call.heads * size;
  k += row * call.kv_heads * size;
  v += row * call.kv_heads * size;
  const float* angles = call.table + static_cast<long long>(call.positions[blockIdx.x % call.position_count]) * size;

  for (int i = static_cast<int>(threadIdx.x) * WIDTH; i < half; i += static_cast<int>(blockDim.x) * WIDTH) {
    const Floats<WIDTH> cosine = load<WIDTH>(angles + i);
    Floats<WIDTH> sine = load<WIDTH>(angles + half + i);
    if constexpr (MERGE) {
#pragma unroll
      for (int j = 0; j < WIDTH; j++) sine[j] = -sine[j];
    }
#pragma unroll 1
    for (int head = static_cast<int>(threadIdx.y); head < call.heads + 2 * call.kv_heads;
         head += static_cast<int>(blockDim.y)) {
      T* whole = qkv + head * size + i;
      T* part = (head < call.heads                   ? q + head * size
                 : head < call.heads + call.kv_heads ? k + (head - call.heads) * size
                                                     : v + (head - call.heads - call.kv_heads) * size) +
                i;
      const T* from = MERGE ? part : whole;
      T* to = MERGE ? whole : part;
      if (head < call.heads + call.kv_heads) {
        rotate(from, to, half, cosine, sine);
      } else {
        store_pack(to, load_pack<WIDTH>(from));
        store_pack(to + half, load_pack<WIDTH>(from + half));
      }
    }
  }
}

template <bool MERGE, class T>
void start(const RopeCall& call, T* qkv, T* q, T* k, T* v, cudaStream_t stream) {
  constexpr int wide = access_bytes / sizeof(T);
  const int half = call.head_size / 2;
  const bool is_wide = half % wide == 0 && aligned(qkv) && aligned(q) && aligned(k) && aligned(v) && aligned(call.table);
  choose_width<wide>(is_wide, [&](auto width) {
    constexpr int WIDTH = decltype(width)::value;
    const int x = std::clamp(half / WIDTH, 1, threads_per_block);
    const int y = std::clamp(threads_per_block / x, 1, call.heads + 2 * call.kv_heads);
    launch(stream, static_cast<unsigned>(call.rows), dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)), 0,
           rope_kernel<T, WIDTH, MERGE>, call, qkv, q, k, v);
  });
}

}  // namespace

template <class T>
void rope_split_forward(const RopeCall& call, const T* qkv, T* q, T* k, T* v, cudaStream_t stream) {
  start<false>(call, const_cast<T*>(qkv), q, k, v, stream);
}

template <class T>
void rope_merge_backward(const RopeCall& call, const T* dq, const T* dk, const T* dv, T* d_qkv, cudaStream_t stream) {
  start<true>(call, d_qkv, const_cast<T*>(dq), const_cast<T*>(dk), const_cast<T*>(dv), stream);
}

template void rope_split_forward(const RopeCall&, const float*, float*, float*, float*, cudaStream_t);
template void rope_split_forward(const RopeCall&, const bf16*, bf16*, bf16*, bf16*, cudaStream_t);
template void rope_merge_backward(const RopeCall&, const float*, const float*, const float*, float*, cudaStream_t);
template void rope_merge_backward(const RopeCall&, const bf16*, const bf16*, const bf16*, bf16*, cudaStream_t);

}  // namespace escalera::cuda
