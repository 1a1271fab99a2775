// The first unit: tokens become rows of the table.
#include "common/model/units.h"

namespace escalera {
namespace {

struct EmbeddingState final : UnitState {};  // the tokens are the caller's

}  // namespace

Parameter vocabulary_parameter(const UnitContext& context, const std::string& name) {
  const ModelConfig& config = context.config;
  return {name,
          config.vocab_size,
          config.hidden_size,
          Parameter::Split::rows,
          context.region.vocabulary(config.vocab_size),
          {Initialization::Kind::normal, config.initializer_range}};
}

Embedding::Embedding(UnitContext& context, Bucket& bucket, int table)
    : Unit("model.embed_tokens"), context_(context), bucket_(bucket), table_(table) {
  uses_ = owns_ = {&bucket};
}

Tensor Embedding::forward(const Tensor& /*x*/, const MicroBatch& micro_batch, std::unique_ptr<UnitState>& state) {
  state = std::make_unique<EmbeddingState>();
  const auto rows = static_cast<Index>(micro_batch.tokens.size());
  const Parameter& table = bucket_.parameters[static_cast<std::size_t>(table_)];
  // [T, H]
  const Tensor y = context_.region.partial_sum(rows, table.columns, context_.dtype, MemoryCategory::activations);
  context_.ops.embedding_forward(micro_batch.tokens, bucket_.weight(table_), table.slice.begin, y);
  // A rank with a part of the vocabulary has zeros for the other tokens: the sum over the region is the embedding.
  return context_.region.exit(y, MemoryCategory::activations);
}

Tensor Embedding::backward(const Tensor& dy, const MicroBatch& micro_batch, UnitState& /*state*/, WeightWork& work) {
  const Parameter& table = bucket_.parameters[static_cast<std::size_t>(table_)];
  work.add_embedding(micro_batch.tokens, context_.region.exit_backward(dy), table.slice.begin,
                     bucket_.gradient(table_));
  return {};
}

}  // namespace escalera
