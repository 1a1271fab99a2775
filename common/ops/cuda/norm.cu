// RMSNorm forward and its repetition: one block per row. A row is read once: it stays in registers between the sum of
// squares and the scaling, or, where it is too long for them, comes again from the cache.
#include "common/core/cuda/launch.h"
#include "common/ops/cuda/block_reduce.h"
#include "common/ops/cuda/kernels.h"
#include "common/ops/cuda/row_blocks.h"

namespace escalera::cuda {
namespace {

constexpr unsigned most_threads = 1024;

enum class Norm { forward, add_forward, apply };

/// The operands; see kernels.h. `rstd` is an input of Norm::apply.
template <class T>
struct NormCall {
  const T *x, *delta, *w;
  T *sum, *y;
  float* rstd;
  float epsilon;
  int columns;
};

/// Forward and its repetition both come here: so they agree bit by bit.
template <int WIDTH>
__device__ __forceinline__ Floats<WIDTH> scaled(const Floats<WIDTH>& x, float rstd, const Floats<WIDTH>& w) {
  Floats<WIDTH> y;
#pragma unroll
  for (int i = 0; i < WIDTH; i++) y[i] = x[i] * rstd * w[i];
  return y;
}

/// The square of each element is added in one operation with one rounding, in every kernel alike.
template <int WIDTH>
__device__ __forceinline__ void add_squares(const Floats<WIDTH>& x, float& squares) {
#pragma unroll
  for (int i = 0; i < WIDTH; i++) squares = fmaf(x[i], x[i], squares);
}

/// 1 / sqrt(mean + epsilon) of this block's row, which its first thread stores.
__device__ __forceinline__ float row_rstd(float squares, float epsilon, int columns, float* rstd, float* slots) {
  const float mean = block_sum(squares, slots) / static_cast<float>(columns);
  const float result = 1.0f / sqrtf(mean + epsilon);
  if (threadIdx.x == 0) rstd[blockIdx.x] = result;
  return result;
}

template <class T, int WIDTH>
__device__ __forceinline__ Pack<T, WIDTH> plus(const Pack<T, WIDTH>& a, const Pack<T, WIDTH>& b) {
  Pack<T, WIDTH> sum;
#pragma unroll
  for (int i = 0; i < WIDTH; i++) sum.values[i] = narrow<T>(widen(a.values[i]) + widen(b.values[i]));
  return sum;
}

template <class T, int WIDTH, Norm KIND>
__global__ void __launch_bounds__(most_threads) norm_kernel(const NormCall<T> call) {
  __shared__ float slots[most_warps];
  const int columns = call.columns;
  const long long start = static_cast<long long>(blockIdx.x) * columns;
  Pack<T, WIDTH> row[packs_in_flight], delta[packs_in_flight];
  for_kept_packs<WIDTH>(columns, [&](int column, int slot) { row[slot] = load_pack<WIDTH>(call.x + start + column); });
  if constexpr (KIND == Norm::add_forward) {
    for_kept_packs<WIDTH>(columns,
                          [&](int column, int slot) { delta[slot] = load_pack<WIDTH>(call.delta + start + column); });
  }
  float rstd;
  if constexpr (KIND == Norm::apply) {
    rstd = call.rstd[blockIdx.x];
  } else {
    float squares = 0;
    for_kept_packs<WIDTH>(columns, [&](int column, int slot) {
      if constexpr (KIND == Norm::add_forward) {
        // What was stored is normalised, not what was computed: backward sees only the rounded sum.
        row[slot] = plus(row[slot], delta[slot]);
        store_pack(call.sum + start + column, row[slot]);
      }
      add_squares(widen(row[slot]), squares);
    });
    rstd = row_rstd(squares, call.epsilon, columns, call.rstd, slots);
  }
  for_kept_packs<WIDTH>(columns, [&](int column, int slot) {
    store(call.y + start + column, scaled(widen(row[slot]), rstd, load<WIDTH>(call.w + column)));
  });
}

/// For rows that are too long for registers.
template <class T, int WIDTH, Norm KIND>
__global__ void __launch_bounds__(most_threads) long_norm_kernel(const NormCall<T> call) {
  __shared__ float slots[most_warps];
  const int columns = call.columns;
  const long long start = static_cast<long long>(blockIdx.x) * columns;
  const T* row = (KIND == Norm::add_forward ? call.sum : call.x) + start;
  float rstd;
  if constexpr (KIND == Norm::apply) {
    rstd = call.rstd[blockIdx.x];
  } else {
    float squares = 0;
    for_all_packs<WIDTH>(columns, [&](int column) {
      Pack<T, WIDTH> x = load_pack<WIDTH>(call.x + start + column);
      if constexpr (KIND == Norm::add_forward) {
        x = plus(x, load_pack<WIDTH>(call.delta + start + column));
        store_pack(call.sum + start + column, x);
      }
      add_squares(widen(x), squares);
    });
    rstd = row_rstd(squares, call.epsilon, columns, call.rstd, slots);
  }
  // Each thread reads again what it has read or written itself, so no barrier is needed.
  for_all_packs<WIDTH>(columns, [&](int column) {
    store(call.y + start + column, scaled(load<WIDTH>(row + column), rstd, load<WIDTH>(call.w + column)));
  });
}

template <Norm KIND, class T>
void start(const NormCall<T>& call, int rows, cudaStream_t stream) {
  constexpr int wide = access_bytes / sizeof(T);
  const bool is_wide = call.columns % wide == 0 && aligned(call.x) && aligned(call.delta) && aligned(call.w) &&
                       aligned(call.sum) && aligned(call.y);
  choose_width<wide>(is_wide, [&](auto width) {
    constexpr int WIDTH = decltype(width)::value;
    const auto kernel = fits_in_registers(call.columns, WIDTH, most_threads) ? norm_kernel<T, WIDTH, KIND>
                                                                             : long_norm_kernel<T, WIDTH, KIND>;
    launch(stream, static_cast<unsigned>(rows), row_threads(call.columns, WIDTH, most_threads), 0, kernel, call);
  });
}

}  // namespace

template <class T>
void rms_norm_forward(const T* x, const T* delta, const T* w, float epsilon, T* sum, T* y, float* rstd, int rows,
                      int columns, cudaStream_t stream) {
  const NormCall<T> call{x, delta, w, sum, y, rstd, epsilon, columns};
  if (delta) {
    start<Norm::add_forward>(call, rows, stream);
  } else {
    start<Norm::forward>(call, rows, stream);
  }
}

template <class T>
void rms_norm_apply(const T* x, const float* rstd, const T* w, T* y, int rows, int columns, cudaStream_t stream) {
  start<Norm::apply>(NormCall<T>{x, nullptr, w, nullptr, y, const_cast<float*>(rstd), 0, columns}, rows, stream);
}

template void rms_norm_forward(const float*, const float*, const float*, float, float*, float*, float*, int, int,
                               cudaStream_t);
template void rms_norm_forward(const bf16*, const bf16*, const bf16*, float, bf16*, bf16*, float*, int, int, cudaStream_t);
template void rms_norm_apply(const float*, const float*, const float*, float*, int, int, cudaStream_t);
template void rms_norm_apply(const bf16*, const float*, const bf16*, bf16*, int, int, cudaStream_t);

}  // namespace escalera::cuda
