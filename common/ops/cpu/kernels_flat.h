// Kernels that see a tensor as a flat row of elements: sums, conversions, norms, optimizers.
#pragma once

#include "common/ops/cpu/simd.h"

namespace escalera::cpu {
namespace {

template <class T, class Wide>
void accumulate(const T* source, Wide* destination, Index count) {
  for_lanes<Wide>(count, [&](Index i, auto lanes) __attribute__((always_inline)) {
    store<Wide>(destination + i, load<Wide>(destination + i, lanes) + load<Wide>(source + i, lanes), lanes);
  });
}

template <class T, class Wide>
void add(const T* a, const T* b, T* out, Index count) {
  for_lanes<Wide>(count, [&](Index i, auto lanes) __attribute__((always_inline)) {
    store<Wide>(out + i, load<Wide>(a + i, lanes) + load<Wide>(b + i, lanes), lanes);
  });
}

template <class T, class Wide>
void scale(T* x, Wide factor, Index count) {
  for_lanes<Wide>(count, [&](Index i, auto lanes) __attribute__((always_inline)) {
    store<Wide>(x + i, load<Wide>(x + i, lanes) * factor, lanes);
  });
}

template <class From, class To>
void convert(const void* source, void* destination, Index count) {
  const From* from = static_cast<const From*>(source);
  To* to = static_cast<To*>(destination);
  // In double where either side is: float would lose digits.
  constexpr bool is_double = std::is_same_v<From, double> || std::is_same_v<To, double>;
  using Wide = std::conditional_t<is_double, double, float>;
  for_lanes<Wide>(count, [&](Index i, auto lanes) __attribute__((always_inline)) {
    store<Wide>(to + i, load<Wide>(from + i, lanes), lanes);
  });
}

/// In double whatever T is: the sum over millions of gradients decides whether they are clipped.
template <class T>
double squared_norm(const T* x, Index count) {
  Vec<double> even{}, odd{};  // two sums, so that one addition need not wait for the last
  const Index pair = 2 * lanes<double>;
  Index i = 0;
  for (; i + pair <= count; i += pair) {
    const Vec<double> a = load<double>(x + i), b = load<double>(x + i + lanes<double>);
    even += a * a;
    odd += b * b;
  }
  for_lanes<double>(count - i, [&](Index j, auto lanes) __attribute__((always_inline)) {
    const Vec<double> a = load<double>(x + i + j, lanes);
    even += a * a;
  });
  return horizontal_sum<double>(even + odd);
}

template <class T, class Wide>
void adamw(Wide* master, const Wide* gradient, Wide* first_moment, Wide* second_moment, T* weights, Index count,
           const AdamWFactors<Wide>& factors) {
  const AdamWFactors<Wide> f = factors;  // a copy: the compiler cannot know that no store changes the original
  for_lanes<Wide>(count, [&](Index i, auto lanes) __attribute__((always_inline)) {
    const Vec<Wide> g = load<Wide>(gradient + i, lanes);
    const Vec<Wide> m = load<Wide>(first_moment + i, lanes) * f.beta1 + g * f.gradient_to_first;
    const Vec<Wide> v = load<Wide>(second_moment + i, lanes) * f.beta2 + g * g * f.gradient_to_second;
    store<Wide>(first_moment + i, m, lanes);
    store<Wide>(second_moment + i, v, lanes);
    const Vec<Wide> divisor = sqrt<Wide>(v) * f.second_correction + f.epsilon;
    const Vec<Wide> updated = load<Wide>(master + i, lanes) * f.decay - m * f.step_size / divisor;
    store<Wide>(master + i, updated, lanes);
    if (weights) store<Wide>(weights + i, updated, lanes);
  });
}

template <class T, class Wide>
void sgd(Wide* master, const Wide* gradient, T* weights, Index count, Wide decay, Wide step_size) {
  for_lanes<Wide>(count, [&](Index i, auto lanes) __attribute__((always_inline)) {
    const Vec<Wide> updated = load<Wide>(master + i, lanes) * decay - load<Wide>(gradient + i, lanes) * step_size;
    store<Wide>(master + i, updated, lanes);
    if (weights) store<Wide>(weights + i, updated, lanes);
  });
}

}  // namespace
}  // namespace escalera::cpu
