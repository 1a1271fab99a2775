// Every operation of the model, declared once. A backend (cpu/, cuda/) implements this interface; the model, the
// optimizer and the chapters call nothing else. The CUDA backend comes from common/cuda/cuda_backend.h.
// defines: Ops, AttentionShape, AdamWSettings, CpuSettings, make_cpu_ops()
#pragma once

#include <memory>
#include <span>

#include "common/core/tensor.h"

namespace escalera {

/// The sizes of one attention call. Rows of q and out are [batch * query_length], rows of k and v [batch * key_length];
/// columns are [heads * head_size] and [kv_heads * head_size]. Query head i reads key/value head i / (heads / kv_heads).
struct AttentionShape {
  Index batch = 0;         ///< sequences
  Index query_length = 0;  ///< queries of each sequence
  Index key_length = 0;    ///< keys and values of each sequence
  Index heads = 0;         ///< query heads, a multiple of kv_heads
  Index kv_heads = 0;      ///< key/value heads
  Index head_size = 0;     ///< columns of a head
  /// Position of the first query and of the first key in their sequence: query i sees key j if
  /// key_offset + j <= query_offset + i. A query may see no key at all.
  /// @{
  Index query_offset = 0;
  Index key_offset = 0;
  /// @}
  /// false: every query sees every key.
  bool causal = true;
};

/// What one AdamW update needs besides the spans (Loshchilov and Hutter 2019, algorithm 2, with bias correction).
struct AdamWSettings {
  double learning_rate = 0;   ///< of this step
  double beta1 = 0.9;         ///< decay of the first moment
  double beta2 = 0.95;        ///< decay of the second moment
  double epsilon = 1e-8;      ///< added to the root of the second moment
  double weight_decay = 0;    ///< 0 for parameters that do not decay
  Index step = 1;             ///< 1 for the first update
  double gradient_scale = 1;  ///< the clip factor; gradients are multiplied by it
};

/// The operations of one device. Shapes: T = rows of activations (batch * sequence), H = hidden size, F = ffn width,
/// V = vocabulary rows held here. "dtype" is the type of the activations, "wide" the accumulation_dtype() of it: weights
/// come in dtype, weight gradients, statistics and sums in wide. Every call may be asynchronous on the device; results
/// that come back as host values block. Outputs never overlap inputs unless said. Sums have a fixed order: the same call
/// on the same data gives the same bits.
class Ops {
 public:
  virtual ~Ops() = default;

  /// Where all tensors of the calls below live; owned by this object.
  virtual Device& device() = 0;
  /// One line for the log: threads, libraries, instruction set.
  virtual std::string description() const = 0;

  // ---- linear -----------------------------------------------------------------------------------------------------
  /// y [T, N] = x [T, K] * w [N, K]^T, or y += with `accumulate`.
  virtual void linear_forward(const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate = false) = 0;
  /// dx [T, K] = dy [T, N] * w [N, K], or dx += with `accumulate`.
  virtual void linear_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx, bool accumulate = false) = 0;
  /// dw [N, K] (wide) += dy [T, N]^T * x [T, K].
  virtual void linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw) = 0;

  // ---- embedding --------------------------------------------------------------------------------------------------
  /// y [T, H] = row tokens[t] - first_row of table [V, H]; zero where that row is not held here.
  virtual void embedding_forward(std::span<const std::int32_t> tokens, const Tensor& table, Index first_row,
                                 const Tensor& y) = 0;
  /// d_table [V, H] (wide), row tokens[t] - first_row, += dy [T, H] row t, in order of t; tokens held elsewhere are
  /// skipped.
  virtual void embedding_backward(std::span<const std::int32_t> tokens, const Tensor& dy, Index first_row,
                                  const Tensor& d_table) = 0;

  // ---- RMSNorm (Zhang and Sennrich 2019) --------------------------------------------------------------------------
  /// rstd [1, T] (wide) = 1 / sqrt(mean(x^2) + epsilon) by row; y [T, H] = x * rstd * w [1, H].
  virtual void rms_norm_forward(const Tensor& x, const Tensor& w, double epsilon, const Tensor& y,
                                const Tensor& rstd) = 0;
  /// sum = x + delta (all [T, H]); y and rstd as above for sum. `sum` may be `x` or `delta`.
  virtual void add_rms_norm_forward(const Tensor& x, const Tensor& delta, const Tensor& w, double epsilon,
                                    const Tensor& sum, const Tensor& y, const Tensor& rstd) = 0;
  /// y again from what forward saved: bitwise the y of rms_norm_forward.
  virtual void rms_norm_apply(const Tensor& x, const Tensor& rstd, const Tensor& w, const Tensor& y) = 0;
  /// dx = gradient of the norm at x for dy, plus `residual` (the gradient that flows past the norm; may be an empty
  /// Tensor, and may be dx itself); dw [1, H] (wide) += its weight gradient.
  virtual void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& w,
                                 const Tensor& residual, const Tensor& dx, const Tensor& dw) = 0;

  // ---- rotary embedding (Su et al. 2021), halves convention of Llama ----------------------------------------------
  /// Splits qkv [T, (heads + 2 kv_heads) * D] into q [T, heads * D], k and v [T, kv_heads * D] and rotates q and k: within
  /// a head, (u, w) = (x[i], x[i + D/2]) becomes (u cos a - w sin a, w cos a + u sin a). `table` [positions, D] (wide)
  /// holds cos a in columns 0..D/2-1 and sin a in the rest, for angle a = position * theta^(-2 i / D). Row t stands at
  /// positions[t % positions.size()].
  virtual void rope_split_forward(const Tensor& qkv, const Tensor& table, std::span<const std::int32_t> positions,
                                  Index head_size, const Tensor& q, const Tensor& k, const Tensor& v) = 0;
  /// d_qkv from dq, dk, dv: the inverse rotation, and the merge.
  virtual void rope_merge_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& table,
                                   std::span<const std::int32_t> positions, Index head_size, const Tensor& d_qkv) = 0;

  // ---- attention, blocked (Dao et al. 2022) -----------------------------------------------------------------------
  /// out = softmax(q k^T / sqrt(head_size)) v under the causal mask; lse [T, heads] (wide) = log of the sum of
  /// exponentials of the scaled scores. A query that sees no key gets out = 0 and lse = -infinity. Memory is linear in the
  /// lengths.
  virtual void attention_forward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Tensor& out, const Tensor& lse) = 0;
  /// dq, dk, dv of the above, overwritten.
  virtual void attention_backward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& out, const Tensor& lse, const Tensor& d_out, const Tensor& dq,
                                  const Tensor& dk, const Tensor& dv) = 0;

  // ---- SwiGLU (Shazeer 2020) --------------------------------------------------------------------------------------
  /// y [T, F] = silu(gate) * up, with gate_up [T, 2F] holding gate in columns 0..F-1 and up in the rest.
  virtual void swiglu_forward(const Tensor& gate_up, const Tensor& y) = 0;
  /// d_gate_up [T, 2F] from dy [T, F]; it may be gate_up itself. If `y` is not empty, forward's y is written to it again.
  virtual void swiglu_backward(const Tensor& gate_up, const Tensor& dy, const Tensor& d_gate_up, const Tensor& y) = 0;

  // ---- cross-entropy, in three parts so that a vocabulary may be split over ranks ---------------------------------
  // The columns of logits [T, V] stand for vocabulary entries first_column, first_column + 1, ...; only the first
  // `valid_columns` are real, the rest is padding. A target < 0 is masked: it counts for nothing.
  /// row_max [1, T] (wide) = largest logit of each row (-infinity without a valid column).
  virtual void cross_entropy_row_max(const Tensor& logits, Index valid_columns, const Tensor& row_max) = 0;
  /// sums [2, T] (wide): row 0 = sum of exp(logit - row_max); row 1 = logit of the target - row_max, 0 if that column is
  /// not held here.
  virtual void cross_entropy_row_sums(const Tensor& logits, Index valid_columns, std::span<const std::int32_t> targets,
                                      Index first_column, const Tensor& row_max, const Tensor& sums) = 0;
  /// Overwrites logits with the gradient of scale * (sum of token losses): scale * (softmax - one at the target), zero in
  /// masked rows and padding columns; and adds scale * loss_share * (sum of token losses) to loss [1, 1] (float64). A
  /// token's loss is log(sums[0, t]) - sums[1, t].
  virtual void cross_entropy_backward(const Tensor& logits, Index valid_columns, std::span<const std::int32_t> targets,
                                      Index first_column, const Tensor& row_max, const Tensor& sums, double scale,
                                      double loss_share, const Tensor& loss) = 0;

  // ---- element-wise and reductions --------------------------------------------------------------------------------
  /// out = a + b, same shape and type; out may be a or b.
  virtual void add(const Tensor& a, const Tensor& b, const Tensor& out) = 0;
  /// x *= factor.
  virtual void scale(const Tensor& x, double factor) = 0;
  /// destination = source, converted to its type (rounded to nearest even).
  virtual void convert(const Tensor& source, const Tensor& destination) = 0;
  /// sum [1, 1] (float64) += sum of x^2.
  virtual void squared_norm(const Tensor& x, const Tensor& sum) = 0;

  // ---- optimizers, over flat spans of equal size ------------------------------------------------------------------
  /// AdamW in place on master, first and second moment (wide), reading gradient (wide). If `weights` is not empty it gets
  /// the updated master rounded to its type; otherwise master is the weights.
  virtual void adamw(const Tensor& master, const Tensor& gradient, const Tensor& first_moment,
                     const Tensor& second_moment, const Tensor& weights, const AdamWSettings& settings) = 0;
  /// master = master * (1 - learning_rate * weight_decay) - learning_rate * gradient_scale * gradient; weights as above.
  virtual void sgd(const Tensor& master, const Tensor& gradient, const Tensor& weights, double learning_rate,
                   double weight_decay, double gradient_scale) = 0;
};

/// Settings of the CPU backend.
struct CpuSettings {
  int threads = 1;           ///< compute threads of this rank
  bool allow_onednn = true;  ///< use oneDNN for float32 and bfloat16 GEMM where it was built in
};

/// The CPU backend, with its own HostDevice.
std::unique_ptr<Ops> make_cpu_ops(const CpuSettings& settings);

}  // namespace escalera
