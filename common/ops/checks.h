// What every backend demands of the arguments of an operation. Each function throws Error, naming the operand as ops.h
// calls it.
// defines: check(), check_*() for the operations of Ops
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/ops/ops.h"

namespace escalera {

/// Throws Error unless the tensor has this shape and type.
void check(const Tensor& tensor, Index rows, Index columns, DType dtype, std::string_view name);
/// The same for flat spans, where only the number of elements counts.
void check(const Tensor& tensor, Index size, DType dtype, std::string_view name);

void check_linear_forward(const Tensor& x, const Tensor& w, const Tensor& y);
void check_linear_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx);
void check_linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw);

void check_embedding_forward(std::span<const std::int32_t> tokens, const Tensor& table, const Tensor& y);
void check_embedding_backward(std::span<const std::int32_t> tokens, const Tensor& dy, const Tensor& d_table);

/// What all four norm operations share: `y` is y or dy.
void check_rms_norm(const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& rstd);
void check_add_rms_norm(const Tensor& x, const Tensor& delta, const Tensor& sum);
void check_rms_norm_backward(const Tensor& x, const Tensor& residual, const Tensor& dx, const Tensor& dw);

/// How many heads q and k have.
struct RopeHeads {
  Index query, key;
};
/// Checks either direction and counts the heads.
RopeHeads check_rope(const Tensor& qkv, const Tensor& table, std::span<const std::int32_t> positions, Index head_size,
                     const Tensor& q, const Tensor& k, const Tensor& v);

void check_attention(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                     const Tensor& lse);
void check_attention_gradients(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& d_out, const Tensor& dq,
                               const Tensor& dk, const Tensor& dv);

void check_swiglu_forward(const Tensor& gate_up, const Tensor& y);
void check_swiglu_backward(const Tensor& gate_up, const Tensor& dy, const Tensor& d_gate_up, const Tensor& y);

void check_cross_entropy_row_max(const Tensor& logits, Index valid_columns, const Tensor& row_max);
void check_cross_entropy_row_sums(const Tensor& logits, Index valid_columns, std::span<const std::int32_t> targets,
                                  const Tensor& row_max, const Tensor& sums);
void check_cross_entropy_backward(const Tensor& logits, Index valid_columns, std::span<const std::int32_t> targets,
                                  const Tensor& row_max, const Tensor& sums, const Tensor& loss);

void check_add(const Tensor& a, const Tensor& b, const Tensor& out);
void check_convert(const Tensor& source, const Tensor& destination);
void check_squared_norm(const Tensor& sum);

/// Returns the type of the weights, which is that of the masters if `weights` is empty.
/// @{
DType check_adamw(const Tensor& master, const Tensor& gradient, const Tensor& first_moment, const Tensor& second_moment,
                  const Tensor& weights, const AdamWSettings& settings);
DType check_sgd(const Tensor& master, const Tensor& gradient, const Tensor& weights);
/// @}

}  // namespace escalera
