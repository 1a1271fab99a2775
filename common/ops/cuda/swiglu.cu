// SwiGLU forward and backward: each thread makes one pack of a row.
#include "common/core/cuda/launch.h"
#include "common/ops/cuda/kernels.h"
#include "common/ops/cuda/vector.h"

namespace escalera::cuda {
namespace {

constexpr unsigned threads_per_block = 256;

/// Where a thread works: a pack of y, and the same of gate; that of up lies `columns` further.
struct Place {
  long long y, gate;
  bool inside;
};

/// Consecutive blocks take consecutive parts of a row. Only this one division by the number of parts, none per element.
template <int WIDTH>
__device__ __forceinline__ Place place_of_thread(int columns, unsigned blocks_per_row) {
  const long long row = blockIdx.x / blocks_per_row;
  const int column = static_cast<int>((blockIdx.x % blocks_per_row) * blockDim.x + threadIdx.x) * WIDTH;
  return {row * columns + column, 2 * row * columns + column, column < columns};
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_per_block)
    swiglu_forward_kernel(const T* __restrict__ gate_up, T* __restrict__ y, int columns, unsigned blocks_per_row) {
  const Place place = place_of_thread<WIDTH>(columns, blocks_per_row);
  if (!place.inside) return;
  const Floats<WIDTH> gate = load<WIDTH>(gate_up + place.gate), up = load<WIDTH>(gate_up + place.gate + columns);
  Floats<WIDTH> result;
#pragma unroll
  for (int i = 0; i < WIDTH; i++) result[i] = gate[i] * sigmoid<T>(gate[i]) * up[i];
  store(y + place.y, result);
}

/// d silu(x) / dx = s + x s (1 - s), with s = sigmoid(x). Each thread reads all it needs before it writes, so that the
/// gradient may go where gate and up are.
template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_per_block)
    swiglu_backward_kernel(const T* gate_up, const T* dy, T* d_gate_up, T* y, int columns, unsigned blocks_per_row) {
  const Place place = place_of_thread<WIDTH>(columns, blocks_per_row);
  if (!place.inside) return;
  const Floats<WIDTH> gate = load<WIDTH>(gate_up + place.gate), up = load<WIDTH>(gate_up + place.gate + columns);
  const Floats<WIDTH> gradient = load<WIDTH>(dy + place.y);
  Floats<WIDTH> d_gate, d_up, result;
#pragma unroll
  for (int i = 0; i < WIDTH; i++) {
    const float s = sigmoid<T>(gate[i]);
    const float silu = gate[i] * s;
    d_gate[i] = gradient[i] * up[i] * (s + silu * (1.0f - s));
    d_up[i] = gradient[i] * silu;
    result[i] = silu * up[i];
  }
  store(d_gate_up + place.gate, d_gate);
  store(d_gate_up + place.gate + columns, d_up);
  if (y) store(y + place.y, result);
}

/// Calls body(width, blocks per row) for the widest packs that columns and pointers allow.
template <class T, class Body>
void choose_blocks(int columns, bool pointers_aligned, Body&& body) {
  constexpr int wide = access_bytes / sizeof(T);
  choose_width<wide>(columns % wide == 0 && pointers_aligned, [&](auto width) {
    body(width, blocks_for(columns, static_cast<long long>(threads_per_block) * decltype(width)::value));
  });
}

}  // namespace

template <class T>
void swiglu_forward(const T* gate_up, T* y, int rows, int columns, cudaStream_t stream) {
  choose_blocks<T>(columns, aligned(gate_up) && aligned(y), [&](auto width, unsigned blocks_per_row) {
    launch(stream, static_cast<unsigned>(rows) * blocks_per_row, threads_per_block, 0,
           swiglu_forward_kernel<T, decltype(width)::value>, gate_up, y, columns, blocks_per_row);
  });
}

template <class T>
void swiglu_backward(const T* gate_up, const T* dy, T* d_gate_up, T* y, int rows, int columns, cudaStream_t stream) {
  const bool pointers_aligned = aligned(gate_up) && aligned(dy) && aligned(d_gate_up) && aligned(y);
  choose_blocks<T>(columns, pointers_aligned, [&](auto width, unsigned blocks_per_row) {
    launch(stream, static_cast<unsigned>(rows) * blocks_per_row, threads_per_block, 0,
           swiglu_backward_kernel<T, decltype(width)::value>, gate_up, dy, d_gate_up, y, columns, blocks_per_row);
  });
}

template void swiglu_forward(const float*, float*, int, int, cudaStream_t);
template void swiglu_forward(const bf16*, bf16*, int, int, cudaStream_t);
template void swiglu_backward(const float*, const float*, float*, float*, int, int, cudaStream_t);
template void swiglu_backward(const bf16*, const bf16*, bf16*, bf16*, int, int, cudaStream_t);

}  // namespace escalera::cuda
