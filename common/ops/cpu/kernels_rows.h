// Kernels that work on rows of activations: RMSNorm, rotary embedding, SwiGLU. Formulas are those of ops.h.
// Inside, "lanes" is how much of a vector a step uses: all of it, or what is left at the end of a row.
#pragma once

#include "common/ops/cpu/simd.h"

namespace escalera::cpu {
namespace {

// ---- RMSNorm ------------------------------------------------------------------------------------------------------------

/// y = x * rstd * w for one row. Forward and its repetition both come here: so they agree bit by bit.
template <class T, class Wide>
ESCALERA_INLINE void scale_row(const T* x, Wide rstd, const T* w, T* y, Index columns) {
  for_lanes<Wide>(columns, [&](Index i, auto lanes) __attribute__((always_inline)) {
    store<Wide>(y + i, load<Wide>(x + i, lanes) * rstd * load<Wide>(w + i, lanes), lanes);
  });
}

template <class T, class Wide>
void rms_norm_forward(const T* x, const T* delta, const T* w, Wide epsilon, T* sum, T* y, Wide* rstd, Index rows,
                      Index columns) {
  for (Index row = 0; row < rows; row++) {
    const Index start = row * columns;
    Vec<Wide> squares{};
    for_lanes<Wide>(columns, [&](Index i, auto lanes) __attribute__((always_inline)) {
      Vec<Wide> value = load<Wide>(x + start + i, lanes);
      if (delta) {
        value += load<Wide>(delta + start + i, lanes);
        // Normalise what was stored, not what was computed: backward sees only the rounded sum.
        store<Wide>(sum + start + i, value, lanes);
        value = load<Wide>(sum + start + i, lanes);
      }
      squares += value * value;
    });
    const Wide mean = horizontal_sum<Wide>(squares) / static_cast<Wide>(columns);
    rstd[row] = static_cast<Wide>(1) / sqrt<Wide>(splat(mean + epsilon))[0];
    scale_row<T, Wide>((delta ? sum : x) + start, rstd[row], w, y + start, columns);
  }
}

template <class T, class Wide>
void rms_norm_apply(const T* x, const Wide* rstd, const T* w, T* y, Index rows, Index columns) {
  for (Index row = 0; row < rows; row++) {
    scale_row<T, Wide>(x + row * columns, rstd[row], w, y + row * columns, columns);
  }
}

/// With n = x * rstd: dx = rstd * (dy * w - n * mean(dy * w * n)) + residual, dw += dy * n.
template <class T, class Wide>
void rms_norm_backward(const T* dy, const T* x, const Wide* rstd, const T* w, const T* residual, T* dx, Wide* dw,
                       Index rows, Index columns) {
  for (Index row = 0; row < rows; row++) {
    const Index start = row * columns;
    Vec<Wide> products{};
    for_lanes<Wide>(columns, [&](Index i, auto lanes) __attribute__((always_inline)) {
      products += load<Wide>(dy + start + i, lanes) * load<Wide>(w + i, lanes) * load<Wide>(x + start + i, lanes);
    });
    const Wide inverse = rstd[row];
    const Wide mean = horizontal_sum<Wide>(products) * inverse / static_cast<Wide>(columns);
    for_lanes<Wide>(columns, [&](Index i, auto lanes) __attribute__((always_inline)) {
      const Vec<Wide> gradient = load<Wide>(dy + start + i, lanes);
      const Vec<Wide> normalised = load<Wide>(x + start + i, lanes) * inverse;
      Vec<Wide> result = (gradient * load<Wide>(w + i, lanes) - normalised * mean) * inverse;
      if (residual) result += load<Wide>(residual + start + i, lanes);
      store<Wide>(dx + start + i, result, lanes);
      store<Wide>(dw + i, load<Wide>(dw + i, lanes) + gradient * normalised, lanes);
    });
  }
}

// ---- rotary embedding ---------------------------------------------------------------------------------------------------

/// Rotates each pair (first half, second half) of one head by its angle, or back.
template <bool back, class T, class Wide>
ESCALERA_INLINE void rotate_head(const T* from, const Wide* angles, T* to, Index head_size) {
  const Index half = head_size / 2;
  for_lanes<Wide>(half, [&](Index i, auto lanes) __attribute__((always_inline)) {
    const Vec<Wide> cosine = load<Wide>(angles + i, lanes);
    const Vec<Wide> sine = back ? -load<Wide>(angles + half + i, lanes) : load<Wide>(angles + half + i, lanes);
    const Vec<Wide> first = load<Wide>(from + i, lanes);
    const Vec<Wide> second = load<Wide>(from + half + i, lanes);
    store<Wide>(to + i, first * cosine - second * sine, lanes);
    store<Wide>(to + half + i, second * cosine + first * sine, lanes);
  });
}

template <class T, class Wide>
void rope_split(const T* qkv, const Wide* angles, T* q, T* k, T* v, Index heads, Index kv_heads, Index head_size) {
  for (Index head = 0; head < heads; head++, qkv += head_size) {
    rotate_head<false>(qkv, angles, q + head * head_size, head_size);
  }
  for (Index head = 0; head < kv_heads; head++, qkv += head_size) {
    rotate_head<false>(qkv, angles, k + head * head_size, head_size);
  }
  __builtin_memcpy(v, qkv, static_cast<std::size_t>(kv_heads * head_size) * sizeof(T));
}

template <class T, class Wide>
void rope_merge(const T* dq, const T* dk, const T* dv, const Wide* angles, T* d_qkv, Index heads, Index kv_heads,
                Index head_size) {
  for (Index head = 0; head < heads; head++, d_qkv += head_size) {
    rotate_head<true>(dq + head * head_size, angles, d_qkv, head_size);
  }
  for (Index head = 0; head < kv_heads; head++, d_qkv += head_size) {
    rotate_head<true>(dk + head * head_size, angles, d_qkv, head_size);
  }
  __builtin_memcpy(d_qkv, dv, static_cast<std::size_t>(kv_heads * head_size) * sizeof(T));
}

// ---- SwiGLU -------------------------------------------------------------------------------------------------------------

template <class Wide>
ESCALERA_INLINE Vec<Wide> sigmoid(Vec<Wide> x) {
  return static_cast<Wide>(1) / (static_cast<Wide>(1) + exp<Wide>(-x));
}

template <class T, class Wide>
void swiglu_forward(const T* gate_up, T* y, Index rows, Index columns) {
  for (Index row = 0; row < rows; row++, gate_up += 2 * columns, y += columns) {
    for_lanes<Wide>(columns, [&](Index i, auto lanes) __attribute__((always_inline)) {
      const Vec<Wide> gate = load<Wide>(gate_up + i, lanes);
      store<Wide>(y + i, gate * sigmoid<Wide>(gate) * load<Wide>(gate_up + columns + i, lanes), lanes);
    });
  }
}

/// d silu(x) / dx = s + x s (1 - s), with s = sigmoid(x). Each vector is read before its place is overwritten, so that the
/// gradient may go where gate and up are.
template <class T, class Wide>
void swiglu_backward(const T* gate_up, const T* dy, T* d_gate_up, T* y, Index rows, Index columns) {
  for (Index row = 0; row < rows; row++) {
    for_lanes<Wide>(columns, [&](Index i, auto lanes) __attribute__((always_inline)) {
      const Vec<Wide> gate = load<Wide>(gate_up + i, lanes);
      const Vec<Wide> up = load<Wide>(gate_up + columns + i, lanes);
      const Vec<Wide> gradient = load<Wide>(dy + i, lanes);
      const Vec<Wide> s = sigmoid<Wide>(gate);
      const Vec<Wide> silu = gate * s;
      store<Wide>(d_gate_up + i, gradient * up * (s + silu * (static_cast<Wide>(1) - s)), lanes);
      store<Wide>(d_gate_up + columns + i, gradient * silu, lanes);
      if (y) store<Wide>(y + i, silu * up, lanes);
    });
    gate_up += 2 * columns;
    dy += columns;
    d_gate_up += 2 * columns;
    if (y) y += columns;
  }
}

}  // namespace
}  // namespace escalera::cpu
