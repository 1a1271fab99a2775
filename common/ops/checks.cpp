#include "common/ops/checks.h"

namespace escalera {
namespace {

DType check_weights(const Tensor& master, const Tensor& weights, std::string_view name) {
  const DType wide = accumulation_dtype(master.dtype());
  if (weights.empty()) return wide;
  check(weights, master.size(), weights.dtype(), name);
  require(accumulation_dtype(weights.dtype()) == wide, "{} of type {} with masters of type {}", name,
          to_string(weights.dtype()), to_string(wide));
  return weights.dtype();
}

}  // namespace

void check(const Tensor& tensor, Index rows, Index columns, DType dtype, std::string_view name) {
  require(tensor.rows() == rows && tensor.columns() == columns && tensor.dtype() == dtype,
          "{} has the shape [{}, {}] and type {}, but [{}, {}] and {} are wanted", name, tensor.rows(), tensor.columns(),
          to_string(tensor.dtype()), rows, columns, to_string(dtype));
}

void check(const Tensor& tensor, Index size, DType dtype, std::string_view name) {
  require(tensor.size() == size && tensor.dtype() == dtype, "{} has {} elements of type {}, but {} of {} are wanted", name,
          tensor.size(), to_string(tensor.dtype()), size, to_string(dtype));
}

// ---- linear -------------------------------------------------------------------------------------------------------------

void check_linear_forward(const Tensor& x, const Tensor& w, const Tensor& y) {
  check(w, w.rows(), x.columns(), x.dtype(), "linear_forward: w");
  check(y, x.rows(), w.rows(), x.dtype(), "linear_forward: y");
}

void check_linear_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx) {
  check(w, dy.columns(), w.columns(), dy.dtype(), "linear_backward_input: w");
  check(dx, dy.rows(), w.columns(), dy.dtype(), "linear_backward_input: dx");
}

void check_linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw) {
  check(x, dy.rows(), x.columns(), dy.dtype(), "linear_backward_weight: x");
  check(dw, dy.columns(), x.columns(), accumulation_dtype(dy.dtype()), "linear_backward_weight: dw");
}

// ---- embedding ----------------------------------------------------------------------------------------------------------

void check_embedding_forward(std::span<const std::int32_t> tokens, const Tensor& table, const Tensor& y) {
  check(y, static_cast<Index>(tokens.size()), table.columns(), table.dtype(), "embedding_forward: y");
}

void check_embedding_backward(std::span<const std::int32_t> tokens, const Tensor& dy, const Tensor& d_table) {
  check(dy, static_cast<Index>(tokens.size()), d_table.columns(), dy.dtype(), "embedding_backward: dy");
  check(d_table, d_table.rows(), d_table.columns(), accumulation_dtype(dy.dtype()), "embedding_backward: d_table");
}

// ---- RMSNorm ------------------------------------------------------------------------------------------------------------

void check_rms_norm(const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& rstd) {
  check(w, 1, x.columns(), x.dtype(), "rms_norm: w");
  check(y, x.rows(), x.columns(), x.dtype(), "rms_norm: y or dy");
  check(rstd, 1, x.rows(), accumulation_dtype(x.dtype()), "rms_norm: rstd");
}

void check_add_rms_norm(const Tensor& x, const Tensor& delta, const Tensor& sum) {
  check(delta, x.rows(), x.columns(), x.dtype(), "add_rms_norm_forward: delta");
  check(sum, x.rows(), x.columns(), x.dtype(), "add_rms_norm_forward: sum");
}

void check_rms_norm_backward(const Tensor& x, const Tensor& residual, const Tensor& dx, const Tensor& dw) {
  check(dx, x.rows(), x.columns(), x.dtype(), "rms_norm_backward: dx");
  check(dw, 1, x.columns(), accumulation_dtype(x.dtype()), "rms_norm_backward: dw");
  if (!residual.empty()) check(residual, x.rows(), x.columns(), x.dtype(), "rms_norm_backward: residual");
}

// ---- rotary embedding ---------------------------------------------------------------------------------------------------

RopeHeads check_rope(const Tensor& qkv, const Tensor& table, std::span<const std::int32_t> positions, Index head_size,
                     const Tensor& q, const Tensor& k, const Tensor& v) {
  require(head_size > 0 && head_size % 2 == 0, "the rotary embedding needs an even head size, not {}", head_size);
  const RopeHeads heads{q.columns() / head_size, k.columns() / head_size};
  const Index rows = qkv.rows();
  check(q, rows, heads.query * head_size, qkv.dtype(), "rope: q");
  check(k, rows, heads.key * head_size, qkv.dtype(), "rope: k");
  check(v, rows, heads.key * head_size, qkv.dtype(), "rope: v");
  check(qkv, rows, (heads.query + 2 * heads.key) * head_size, qkv.dtype(), "rope: qkv");
  check(table, table.rows(), head_size, accumulation_dtype(qkv.dtype()), "rope: table");
  require(!positions.empty() || rows == 0, "rope: no positions for {} rows", rows);
  for (const std::int32_t position : positions) {
    require(position >= 0 && position < table.rows(), "rope: position {} in a table of {}", position, table.rows());
  }
  return heads;
}

// ---- attention ----------------------------------------------------------------------------------------------------------

void check_attention(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                     const Tensor& lse) {
  require(shape.heads > 0 && shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
          "attention: {} query heads cannot share {} key/value heads evenly", shape.heads, shape.kv_heads);
  require(shape.head_size > 0, "attention: head size is {}", shape.head_size);
  const Index queries = shape.batch * shape.query_length, keys = shape.batch * shape.key_length;
  check(q, queries, shape.heads * shape.head_size, q.dtype(), "attention: q");
  check(k, keys, shape.kv_heads * shape.head_size, q.dtype(), "attention: k");
  check(v, keys, shape.kv_heads * shape.head_size, q.dtype(), "attention: v");
  check(out, queries, shape.heads * shape.head_size, q.dtype(), "attention: out");
  check(lse, queries, shape.heads, accumulation_dtype(q.dtype()), "attention: lse");
}

void check_attention_gradients(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& d_out, const Tensor& dq,
                               const Tensor& dk, const Tensor& dv) {
  check(d_out, q.rows(), q.columns(), q.dtype(), "attention: d_out");
  check(dq, q.rows(), q.columns(), q.dtype(), "attention: dq");
  check(dk, k.rows(), k.columns(), k.dtype(), "attention: dk");
  check(dv, v.rows(), v.columns(), v.dtype(), "attention: dv");
}

// ---- SwiGLU -------------------------------------------------------------------------------------------------------------

void check_swiglu_forward(const Tensor& gate_up, const Tensor& y) {
  check(gate_up, y.rows(), 2 * y.columns(), y.dtype(), "swiglu_forward: gate_up");
}

void check_swiglu_backward(const Tensor& gate_up, const Tensor& dy, const Tensor& d_gate_up, const Tensor& y) {
  check(gate_up, dy.rows(), 2 * dy.columns(), dy.dtype(), "swiglu_backward: gate_up");
  check(d_gate_up, dy.rows(), 2 * dy.columns(), dy.dtype(), "swiglu_backward: d_gate_up");
  if (!y.empty()) check(y, dy.rows(), dy.columns(), dy.dtype(), "swiglu_backward: y");
}

// ---- cross-entropy ------------------------------------------------------------------------------------------------------

void check_cross_entropy_row_max(const Tensor& logits, Index valid_columns, const Tensor& row_max) {
  require(valid_columns >= 0 && valid_columns <= logits.columns(), "cross_entropy: {} valid columns of {}", valid_columns,
          logits.columns());
  check(row_max, 1, logits.rows(), accumulation_dtype(logits.dtype()), "cross_entropy: row_max");
}

void check_cross_entropy_row_sums(const Tensor& logits, Index valid_columns, std::span<const std::int32_t> targets,
                                  const Tensor& row_max, const Tensor& sums) {
  check_cross_entropy_row_max(logits, valid_columns, row_max);
  require(static_cast<Index>(targets.size()) == logits.rows(), "cross_entropy: {} targets for {} rows", targets.size(),
          logits.rows());
  check(sums, 2, logits.rows(), accumulation_dtype(logits.dtype()), "cross_entropy: sums");
}

void check_cross_entropy_backward(const Tensor& logits, Index valid_columns, std::span<const std::int32_t> targets,
                                  const Tensor& row_max, const Tensor& sums, const Tensor& loss) {
  check_cross_entropy_row_sums(logits, valid_columns, targets, row_max, sums);
  check(loss, 1, 1, DType::float64, "cross_entropy_backward: loss");
}

// ---- element-wise and reductions ----------------------------------------------------------------------------------------

void check_add(const Tensor& a, const Tensor& b, const Tensor& out) {
  check(b, a.rows(), a.columns(), a.dtype(), "add: b");
  check(out, a.rows(), a.columns(), a.dtype(), "add: out");
}

void check_convert(const Tensor& source, const Tensor& destination) {
  check(destination, source.size(), destination.dtype(), "convert: destination");
}

void check_squared_norm(const Tensor& sum) { check(sum, 1, 1, DType::float64, "squared_norm: sum"); }

// ---- optimizers ---------------------------------------------------------------------------------------------------------

DType check_adamw(const Tensor& master, const Tensor& gradient, const Tensor& first_moment, const Tensor& second_moment,
                  const Tensor& weights, const AdamWSettings& settings) {
  const Index count = master.size();
  const DType wide = accumulation_dtype(master.dtype());
  check(master, count, wide, "adamw: master");
  check(gradient, count, wide, "adamw: gradient");
  check(first_moment, count, wide, "adamw: first_moment");
  check(second_moment, count, wide, "adamw: second_moment");
  require(settings.step >= 1, "adamw: steps count from 1, not {}", settings.step);
  return check_weights(master, weights, "adamw: weights");
}

DType check_sgd(const Tensor& master, const Tensor& gradient, const Tensor& weights) {
  const Index count = master.size();
  const DType wide = accumulation_dtype(master.dtype());
  check(master, count, wide, "sgd: master");
  check(gradient, count, wide, "sgd: gradient");
  return check_weights(master, weights, "sgd: weights");
}

}  // namespace escalera
