// What an operation must move or compute, whoever implements it: the bar that bench_cuda.cpp holds measured times against, and
// kernel_table.py (which reads the table below out of this file) the kernels.
// defines: Floor, floors, floor_of(), matrix_product_flops(), attention_forward_flops(), attention_backward_flops()
#pragma once

#include <algorithm>
#include <string_view>

#include "common/core/dtype.h"
#include "common/core/error.h"

namespace escalera::bench {

/// Values that must come from memory or go there, for each element of an operation. What is needed once per row (statistics,
/// targets) or for all rows together (weights of a norm, angles) is left out: at the width of a real model it is less than 1 %.
struct Floor {
  std::string_view operation;
  int narrow;  ///< in the type of the activations
  int wide;    ///< in float32
  std::string_view moves;
};

// One line each, so that a script can read them.
// clang-format off
inline constexpr Floor floors[] = {
    {"rms_norm_forward", 2, 0, "x in; y out"},
    {"add_rms_norm_forward", 4, 0, "x, delta in; sum, y out"},
    {"rms_norm_apply", 2, 0, "x in; y out"},
    {"rms_norm_backward", 4, 0, "dy, x, residual in; dx out"},
    {"rope_split_forward", 2, 0, "qkv in; q, k, v out"},
    {"rope_merge_backward", 2, 0, "dq, dk, dv in; d_qkv out"},
    {"swiglu_forward", 3, 0, "gate, up in; y out"},
    {"swiglu_backward", 5, 0, "gate, up, dy in; d_gate, d_up out"},
    {"embedding_forward", 2, 0, "row of the table in; y out"},
    {"embedding_backward", 1, 2, "dy in; row of the gradient in and out, once for each token that occurs"},
    {"cross_entropy_row_max", 1, 0, "logits in"},
    {"cross_entropy_row_sums", 1, 0, "logits in"},
    {"cross_entropy_backward", 2, 0, "logits in; their gradient out"},
    {"attention_row_dot", 2, 0, "out, d_out in; what attention backward begins with"},
    {"add", 3, 0, "a, b in; sum out"},
    {"scale", 2, 0, "x in; x out"},
    {"convert", 1, 1, "one type in; the other out"},
    {"squared_norm", 0, 1, "x in"},
    {"adamw", 1, 7, "master, gradient, two moments in; master, two moments, weights out"},
    {"sgd", 1, 3, "master, gradient in; master, weights out"},
};
// clang-format on

inline const Floor& floor_of(std::string_view operation) {
  const auto* floor = std::ranges::find(floors, operation, &Floor::operation);
  require(floor != std::end(floors), "there is no floor for {}", operation);
  return *floor;
}

/// c [m, n] = a [m, k] * b [k, n].
inline double matrix_product_flops(Index m, Index n, Index k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

/// Two products of forward, 2 operations per query, key and column of a head each, five in backward. A causal query sees half of
/// the keys, and only those count, as in published figures of flash attention.
/// @{
inline double attention_forward_flops(Index batch, Index length, Index heads, Index head_size) {
  return 4.0 * static_cast<double>(batch * heads) * static_cast<double>(head_size) *
         static_cast<double>(length) * static_cast<double>(length) / 2;
}
inline double attention_backward_flops(Index batch, Index length, Index heads, Index head_size) {
  return 2.5 * attention_forward_flops(batch, length, heads, head_size);
}
/// @}

}  // namespace escalera::bench
