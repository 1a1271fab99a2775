// What tensor parallelism refuses, before anything is allocated, and what it offers instead.
#include <algorithm>
#include <numeric>

#include "step03_tp/tensor_parallel.h"

namespace escalera {
namespace {

bool kv_heads_fit(Index heads, Index ranks, const TensorParallelSettings& settings) {
  return heads % ranks == 0 || (settings.kv_replication && ranks % heads == 0);
}

Index vocabulary_part(Index size, Index ranks) {
  return (size + ranks - 1) / ranks;
}

bool vocabulary_fits(Index size, Index ranks) {
  return (ranks - 1) * vocabulary_part(size, ranks) < size;
}

bool fits(const ModelConfig& model, Index ranks, const TensorParallelSettings& settings) {
  return model.num_attention_heads % ranks == 0 && kv_heads_fit(model.num_key_value_heads, ranks, settings) &&
         model.intermediate_size % ranks == 0 && vocabulary_fits(model.vocab_size, ranks);
}

}  // namespace

std::string TensorParallel::instead_of(int ranks, const ModelConfig& model, int world, const TensorParallelSettings& settings) {
  // One rank always works.
  int tp = std::max(1, std::min(ranks, world));
  while (tp > 1 && (world % tp != 0 || !fits(model, tp, settings))) tp--;
  return fmt::format("--tp {} --dp {}", tp, world / tp);
}

void TensorParallel::validate(const ModelConfig& model, int ranks, int world, const TensorParallelSettings& settings) {
  const std::string instead = instead_of(ranks - 1, model, world, settings);
  const Index heads = model.num_attention_heads, kv_heads = model.num_key_value_heads;
  require<UsageError>(heads % ranks == 0,
                      "--num-attention-heads {} cannot be shared out evenly among --tp {} ranks; {} would work", heads, ranks,
                      instead);
  require<UsageError>(ranks <= kv_heads || settings.kv_replication,
                      "--num-key-value-heads {} are too few for --tp {} ranks unless some hold the same one, which "
                      "--no-kv-replication forbids; leave it out, or {} would work",
                      kv_heads, ranks, instead);
  require<UsageError>(kv_heads_fit(kv_heads, ranks, settings),
                      "--num-key-value-heads {} and --tp {}: one must be a multiple of the other (--num-attention-heads {}); {} "
                      "would work",
                      kv_heads, ranks, heads, instead);
  require<UsageError>(model.intermediate_size % ranks == 0,
                      "--intermediate-size {} cannot be shared out evenly among --tp {} ranks; {} or --intermediate-size {} "
                      "would work",
                      model.intermediate_size, ranks, instead, (model.intermediate_size / ranks + 1) * ranks);
  const Index part = vocabulary_part(model.vocab_size, ranks);
  require<UsageError>(vocabulary_fits(model.vocab_size, ranks),
                      "--vocab-size {} is too small for --tp {} ranks: with {} of its rows each, the last would have none; {} or "
                      "--vocab-size {} would work",
                      model.vocab_size, ranks, part, instead, part * ranks);
}

void TensorParallel::validate_rows(Index micro_batch_size, Index seq_length, Index longest, int ranks,
                                   const TensorParallelSettings& settings) {
  if (!settings.sequence_parallel || micro_batch_size * seq_length % ranks == 0) return;
  const Index unit = ranks / std::gcd(micro_batch_size, Index{ranks});
  const Index above = (seq_length / unit + 1) * unit, below = above - unit;
  const std::string instead = above <= longest ? fmt::format("--seq-length {}", above)
                              : below > 0      ? fmt::format("--seq-length {}", below)
                                               : fmt::format("--micro-batch-size {}", ranks);
  fail<UsageError>("--sequence-parallel shares out --micro-batch-size {} x --seq-length {} = {} rows among --tp {} ranks, which "
                   "does not come out even; {} would work",
                   micro_batch_size, seq_length, micro_batch_size * seq_length, ranks, instead);
}

}  // namespace escalera
