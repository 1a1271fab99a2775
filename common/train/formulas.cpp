#include "common/train/formulas.h"

#include <utility>

namespace escalera {
namespace {

/// Columns of the query and of the key (or value) projection.
Index query_columns(const ModelConfig& model) {
  return model.num_attention_heads * model.head_size();
}
Index kv_columns(const ModelConfig& model) {
  return model.num_key_value_heads * model.head_size();
}

Index sum_of_bytes(const std::vector<ActivationRow>& rows, Recompute recompute) {
  Index bytes = 0;
  for (const ActivationRow& row : rows) bytes += row.kept(recompute) ? row.bytes : 0;
  return bytes;
}

}  // namespace

Index parameter_count(const ModelConfig& model) {
  const Index hidden = model.hidden_size;
  const Index tables = model.tie_word_embeddings ? 1 : 2;
  const Index feed_forward = 3 * hidden * model.intermediate_size;
  const Index attention = 2 * hidden * query_columns(model) + 2 * hidden * kv_columns(model);
  const Index norms = 2 * hidden;
  return tables * model.vocab_size * hidden + model.num_hidden_layers * (feed_forward + attention + norms) +
         hidden;
}

StaticMemory static_memory(const ModelConfig& model, DType dtype, OptimizerKind optimizer) {
  const Index count = parameter_count(model);
  const Index wide = size_of(accumulation_dtype(dtype));
  // A master copy is needed only where the weights themselves are too coarse to be updated.
  const Index master = accumulation_dtype(dtype) != dtype ? wide : 0;
  const Index moments = optimizer == OptimizerKind::adamw ? 2 * wide : 0;
  return {count * size_of(dtype), count * wide, count * (master + moments)};
}

Index data_parallel_traffic(const ModelConfig& model, DType dtype, int dp) {
  return 2 * Index{dp - 1} * parameter_count(model) * size_of(accumulation_dtype(dtype));
}

std::vector<ActivationRow> block_activations(const ModelConfig& model, DType dtype, ActivationRows rows) {
  const Index narrow = size_of(dtype), wide = size_of(accumulation_dtype(dtype));
  const Index hidden = rows.outside * model.hidden_size, norm = rows.outside;
  const Index heads = rows.inside * model.num_attention_heads;
  const Index query = rows.inside * query_columns(model), kv = rows.inside * kv_columns(model);
  const Index ffn = rows.inside * model.intermediate_size;
  // clang-format off
  //       name                elements  bytes        kept with: none  selective  full
  return {{"x",                hidden,   hidden * narrow,               true,     true,  true},
          {"rstd 1",           norm,     norm * wide,                   true,     true, false},
          {"norm 1",           hidden,   hidden * narrow,               true,    false, false},
          {"q",                query,    query * narrow,                true,     true, false},
          {"k",                kv,       kv * narrow,                   true,     true, false},
          {"v",                kv,       kv * narrow,                   true,     true, false},
          {"attention output", query,    query * narrow,                true,     true, false},
          {"log-sum-exp",      heads,    heads * wide,                  true,     true, false},
          {"middle",           hidden,   hidden * narrow,               true,     true, false},
          {"rstd 2",           norm,     norm * wide,                   true,     true, false},
          {"norm 2",           hidden,   hidden * narrow,               true,    false, false},
          {"gate and up",      2 * ffn,  2 * ffn * narrow,              true,     true, false},
          {"SwiGLU output",    ffn,      ffn * narrow,                  true,    false, false}};
  // clang-format on
}

std::vector<ActivationRow> head_activations(const ModelConfig& model, DType dtype, ActivationRows rows) {
  const Index narrow = size_of(dtype), wide = size_of(accumulation_dtype(dtype));
  const Index hidden = rows.outside * model.hidden_size, norm = rows.outside;
  const Index logits = rows.inside * model.vocab_size;
  // The head is never run again, so full keeps what none keeps.
  // clang-format off
  //       name                elements  bytes        kept with: none  selective  full
  return {{"x",                hidden,   hidden * narrow,               true,     true,  true},
          {"rstd",             norm,     norm * wide,                   true,     true,  true},
          {"norm",             hidden,   hidden * narrow,               true,    false,  true},
          {"logits",           logits,   logits * narrow,               true,     true,  true}};
  // clang-format on
}

ActivationMemory activation_memory(const ModelConfig& model, DType dtype, Recompute recompute, ActivationRows rows) {
  const std::vector<ActivationRow> block = block_activations(model, dtype, rows);
  ActivationMemory memory;
  memory.per_block = sum_of_bytes(block, recompute);
  memory.blocks = model.num_hidden_layers * memory.per_block;
  memory.head = sum_of_bytes(head_activations(model, dtype, rows), recompute);
  // With full, one block at a time still holds all that none would hold while it runs, and its output: as much as its
  // input, which blocks has counted already. Selective computes one tensor at a time again, as a temporary of
  // backward, which is not counted as an activation.
  if (recompute == Recompute::full) memory.recomputed = sum_of_bytes(block, Recompute::none);
  return memory;
}

double flops_per_token(const ModelConfig& model, Index seq_length, AttentionFlops attention) {
  const auto parameters = static_cast<double>(parameter_count(model));
  const auto keys = static_cast<double>(seq_length);
  const auto width = static_cast<double>(model.num_hidden_layers * query_columns(model));
  // Scores and weighted sum cost 2 * 2 A per pair of query and key, once forward and twice backward: 12 A. A causal
  // query at position i sees i + 1 keys, (s + 1) / 2 on average.
  const double seen = attention == AttentionFlops::full ? keys : (keys + 1.0) / 2.0;
  return 6.0 * parameters + 12.0 * width * seen;
}

double model_flops_utilization(const ModelConfig& model, Index seq_length, AttentionFlops attention,
                               double tokens_per_second_per_rank, double peak_tflops) {
  if (peak_tflops <= 0.0) return -1.0;
  return tokens_per_second_per_rank * flops_per_token(model, seq_length, attention) / (peak_tflops * 1e12);
}

}  // namespace escalera
