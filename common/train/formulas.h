// What a run should need, computed from its options alone. Nothing here looks at a tensor or a communicator: the report
// at the end of a run sets these numbers beside those that were counted.
// defines: parameter_count(), static_memory(), data_parallel_traffic(), block_activations(), head_activations(),
//          activation_memory(), flops_per_token(), model_flops_utilization()
#pragma once

#include <string>
#include <vector>

#include "common/model/config.h"
#include "common/train/options.h"

namespace escalera {

/// N, the number of parameters: (1 tied, 2 untied) V H + L (3 H F + 2 H A + 2 H K + 2 H) + H, with A = heads
/// * head size and K = kv heads * head size. Where A = H this is v h + L (3 h f + (2 + 2 k/a) h^2 + 2 h) + h.
Index parameter_count(const ModelConfig& model);

/// Bytes on one rank that do not depend on the batch, without any sharding.
struct StaticMemory {
  Index parameters = 0;  ///< weights in the type the model computes with
  Index gradients = 0;   ///< in the accumulation type
  Index optimizer = 0;   ///< float32 master weights (bfloat16 only) and AdamW's two moments
};
/// N times 4+4+8 bytes for float32 and AdamW, 2+4+12 for bfloat16, 8+8+16 for float64; SGD keeps no moments.
StaticMemory static_memory(const ModelConfig& model, DType dtype, OptimizerKind optimizer);

/// Bytes that the all-reduce of all gradients over `dp` ranks sends per step, summed over ranks: 2 (d - 1) N
/// g, with g bytes per gradient element.
Index data_parallel_traffic(const ModelConfig& model, DType dtype, int dp);

/// One tensor that forward keeps for backward.
struct ActivationRow {
  std::string name;            ///< what it is, for the table
  Index elements = 0;          ///< on this rank
  Index bytes = 0;             ///< of all elements
  bool kept_none = true;       ///< kept from forward to backward with --recompute none
  bool kept_selective = true;  ///< ... selective
  bool kept_full = false;      ///< ... full

  /// Whether it is kept between forward and backward in this mode; otherwise it is computed again in
  /// backward.
  bool kept(Recompute recompute) const {
    return recompute == Recompute::none        ? kept_none
           : recompute == Recompute::selective ? kept_selective
                                               : kept_full;
  }
};

/// Rows of a micro-batch's activations on this rank: sequences * sequence length, on one rank. Outside of tensor regions
/// (residual stream, norms) a rank may hold fewer than inside.
struct ActivationRows {
  Index outside = 0;  ///< of a region
  Index inside = 0;   ///< of a region
};
/// The tensors of one block, for one micro-batch. `model` has as many heads, and as wide a feed-forward layer, as this rank
/// computes.
std::vector<ActivationRow> block_activations(const ModelConfig& model, DType dtype, ActivationRows rows);
/// The tensors of final norm, head and loss. `model` has this rank's rows of the vocabulary.
std::vector<ActivationRow> head_activations(const ModelConfig& model, DType dtype, ActivationRows rows);

/// Bytes of activations that one micro-batch needs at most.
struct ActivationMemory {
  Index per_block = 0;   ///< kept by each block
  Index blocks = 0;      ///< kept by all blocks
  Index head = 0;        ///< final norm, head and loss, while they are at work
  Index recomputed = 0;  ///< full only: what one running block needs beside its input, its output included
  /// The head is done before the first block is computed again, so the larger of the two counts.
  Index peak() const { return blocks + (head > recomputed ? head : recomputed); }
};
/// The sum of block_activations() and head_activations() under `recompute`.
ActivationMemory activation_memory(const ModelConfig& model, DType dtype, Recompute recompute, ActivationRows rows);

/// How attention's score products are counted.
enum class AttentionFlops {
  full,    ///< 12 L A s per token: every query against every key. The convention of published MFU figures
  causal,  ///< 6 L A (s + 1): what a causal model needs
};
/// Floating-point operations per token of forward (2 N) and backward (4 N), plus attention; recomputation is
/// not counted. The N of published figures includes the embedding, and so does this one.
double flops_per_token(const ModelConfig& model, Index seq_length, AttentionFlops attention);

/// Share of the peak that a run reaches, "MFU": tokens/s/rank * flops_per_token / peak. Negative if the peak
/// is 0 (unknown).
double model_flops_utilization(const ModelConfig& model, Index seq_length, AttentionFlops attention,
                               double tokens_per_second_per_rank, double peak_tflops);

}  // namespace escalera
