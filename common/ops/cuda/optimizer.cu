// AdamW and SGD over flat spans: every state is read once and written once.
#include "common/core/cuda/launch.h"
#include "common/ops/cuda/kernels.h"
#include "common/ops/cuda/vector.h"

namespace escalera::cuda {
namespace {

constexpr unsigned threads_per_block = 256;
constexpr int wide =
    access_bytes / sizeof(float);  // masters, gradients and moments are float32; weights may be half as wide

template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_per_block)
    adamw_kernel(float* __restrict__ master, const float* __restrict__ gradient, float* __restrict__ first_moment,
                 float* __restrict__ second_moment, T* __restrict__ weights, long long count, const AdamWFactors<float> f) {
  for_pack<WIDTH>(count, [&](long long i, auto width) {
    constexpr int N = decltype(width)::value;
    Floats<N> p = load<N>(master + i), m = load<N>(first_moment + i), v = load<N>(second_moment + i);
    const Floats<N> g = load<N>(gradient + i);
#pragma unroll
    for (int j = 0; j < N; j++) {
      m[j] = m[j] * f.beta1 + g[j] * f.gradient_to_first;
      v[j] = v[j] * f.beta2 + g[j] * g[j] * f.gradient_to_second;
      p[j] = p[j] * f.decay - m[j] * f.step_size / (sqrtf(v[j]) * f.second_correction + f.epsilon);
    }
    store(first_moment + i, m);
    store(second_moment + i, v);
    store(master + i, p);
    if (weights) store(weights + i, p);
  });
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_per_block)
    sgd_kernel(float* __restrict__ master, const float* __restrict__ gradient, T* __restrict__ weights, long long count,
               float decay, float step_size) {
  for_pack<WIDTH>(count, [&](long long i, auto width) {
    constexpr int N = decltype(width)::value;
    Floats<N> p = load<N>(master + i);
    const Floats<N> g = load<N>(gradient + i);
#pragma unroll
    for (int j = 0; j < N; j++) p[j] = p[j] * decay - g[j] * step_size;
    store(master + i, p);
    if (weights) store(weights + i, p);
  });
}

unsigned blocks_of_packs(long long count, int width) {
  return blocks_for(count, static_cast<long long>(threads_per_block) * width);
}

}  // namespace

template <class T>
void adamw(float* master, const float* gradient, float* first_moment, float* second_moment, T* weights, long long count,
           const AdamWFactors<float>& factors, cudaStream_t stream) {
  const bool is_wide = aligned(master) && aligned(gradient) && aligned(first_moment) && aligned(second_moment) &&
                       aligned(weights, wide * sizeof(T));
  choose_width<wide>(is_wide, [&](auto width) {
    constexpr int WIDTH = decltype(width)::value;
    launch(stream, blocks_of_packs(count, WIDTH), threads_per_block, 0, adamw_kernel<T, WIDTH>, master, gradient,
           first_moment, second_moment, weights, count, factors);
  });
}

template <class T>
void sgd(float* master, const float* gradient, T* weights, long long count, float decay, float step_size,
         cudaStream_t stream) {
  const bool is_wide = aligned(master) && aligned(gradient) && aligned(weights, wide * sizeof(T));
  choose_width<wide>(is_wide, [&](auto width) {
    constexpr int WIDTH = decltype(width)::value;
    launch(stream, blocks_of_packs(count, WIDTH), threads_per_block, 0, sgd_kernel<T, WIDTH>, master, gradient, weights,
           count, decay, step_size);
  });
}

template void adamw(float*, const float*, float*, float*, float*, long long, const AdamWFactors<float>&, cudaStream_t);
template void adamw(float*, const float*, float*, float*, bf16*, long long, const AdamWFactors<float>&, cudaStream_t);
template void sgd(float*, const float*, float*, long long, float, float, cudaStream_t);
template void sgd(float*, const float*, bf16*, long long, float, float, cudaStream_t);

}  // namespace escalera::cuda
