#include "step03_tp/formulas.h"

#include <algorithm>

#include "common/train/formulas.h"

namespace escalera {
namespace {

/// What crosses the ranks of one group, in units of which the operations are made.
struct Group {
  Group(const ModelConfig& model, DType dtype, Index rows, const TensorLayout& layout)
      : others(layout.tp - 1),
        activations(rows * model.hidden_size * size_of(dtype)),
        statistics(rows * size_of(accumulation_dtype(dtype))),
        sequence_parallel(layout.settings.sequence_parallel) {}

  Index others;       // t - 1
  Index activations;  // A, bytes of [T, H]
  Index statistics;   // bytes of one wide number per row
  bool sequence_parallel;

  /// `count` times what g does forward and f backward: a sum.
  void sum(TrafficPrediction& traffic, Index count) const {
    if (sequence_parallel) {
      traffic[Operation::reduce_scatter] += count * others * activations;
    } else {
      traffic[Operation::all_reduce] += count * 2 * others * activations;
    }
  }
  /// `count` times what f does forward and g backward: nothing, or rows from all ranks.
  void gather(TrafficPrediction& traffic, Index count) const {
    if (sequence_parallel) traffic[Operation::all_gather] += count * others * activations;
  }
  /// The largest logit, the sum of exponentials and the target's logit of each row.
  void loss(TrafficPrediction& traffic) const {
    traffic[Operation::all_reduce] += 3 * 2 * others * statistics;
  }
};

Index wide_bytes(DType dtype) {
  return size_of(accumulation_dtype(dtype));
}

/// Sums of gradients at the end of a step.
void add_gradient_sums(TrafficPrediction& traffic, const ModelConfig& model, DType dtype,
                       const TensorLayout& layout) {
  const Index t = layout.tp, hidden = model.hidden_size, layers = model.num_hidden_layers;
  Index elements = 0;  // times 2 (ranks - 1), over all groups
  elements += t * (layout.dp - 1) * parameter_count(tensor_share(model, layout.tp));
  if (layout.settings.sequence_parallel) elements += layout.dp * (t - 1) * (2 * layers + 1) * hidden;
  if (t > model.num_key_value_heads) {
    // Of each key/value head, k and v over the t / kv ranks that hold it.
    const Index heads = model.num_key_value_heads, sharing = t / heads;
    elements += layout.dp * heads * (sharing - 1) * layers * 2 * model.head_size() * hidden;
  }
  traffic[Operation::all_reduce] += 2 * elements * wide_bytes(dtype);
}

}  // namespace

void add(TrafficPrediction& a, const TrafficPrediction& b, Index factor) {
  for (std::size_t i = 0; i < a.bytes.size(); i++) a.bytes[i] += factor * b.bytes[i];
}

ModelConfig tensor_share(const ModelConfig& model, int tp) {
  ModelConfig share = model;
  share.head_dim = model.head_size();
  share.num_attention_heads /= tp;
  share.num_key_value_heads = std::max<Index>(1, model.num_key_value_heads / tp);
  share.intermediate_size /= tp;
  share.vocab_size = (model.vocab_size + tp - 1) / tp;
  return share;
}

MemoryPrediction predict_memory(const TrainOptions& options, const TensorLayout& layout) {
  const ModelConfig share = tensor_share(options.model, layout.tp);
  const bool sequence_parallel = layout.settings.sequence_parallel && layout.tp > 1;
  const Index rows = options.micro_batch_size.value() * options.seq_length;
  const Index outside = sequence_parallel ? rows / layout.tp : rows;
  const StaticMemory fixed = static_memory(share, options.dtype, options.optimizer);
  MemoryPrediction predicted;
  predicted[MemoryCategory::parameters] = fixed.parameters;
  predicted[MemoryCategory::gradients] = fixed.gradients;
  predicted[MemoryCategory::optimizer] = fixed.optimizer;
  predicted[MemoryCategory::activations] =
      activation_memory(share, options.dtype, options.recompute, {outside, rows}).peak();
  // One [T, H] is gathered, or waits to be summed, at a time. Backward of o and down gathers halves and lays them in order
  // beside.
  const Index gathered = rows * options.model.hidden_size * size_of(options.dtype);
  const bool halves_beside = layout.settings.overlap && outside >= 2;
  predicted[MemoryCategory::communication] = sequence_parallel ? (halves_beside ? 2 : 1) * gathered : 0;
  return predicted;
}

VisitTraffic layer_traffic(const ModelConfig& model, DType dtype, Recompute recompute, Index rows,
                           const TensorLayout& layout) {
  const Group group(model, dtype, rows, layout);
  VisitTraffic layer;
  group.gather(layer.forward, 2);  // f before q, k, v and before gate, up
  group.sum(layer.forward, 2);     // g after o and after down
  group.sum(layer.backward, 2);
  group.gather(layer.backward, 2);  // g backward
  group.gather(layer.backward, 2);  // what f gathered was not kept, and the weight gradients need it again
  if (recompute == Recompute::full) add(layer.backward, layer.forward);
  return layer;
}

TrafficPrediction forward_traffic(const ModelConfig& model, DType dtype, Index rows,
                                  const TensorLayout& layout) {
  const Group group(model, dtype, rows, layout);
  TrafficPrediction traffic;
  group.sum(traffic, 1);  // embedding
  add(traffic, layer_traffic(model, dtype, Recompute::none, rows, layout).forward, model.num_hidden_layers);
  group.gather(traffic, 1);  // head
  group.loss(traffic);
  return traffic;
}

TrafficPrediction step_traffic(const TrainOptions& options, const TensorLayout& layout) {
  const ModelConfig& model = options.model;
  const Index rows = options.micro_batch_size.value() * options.seq_length;
  const Group group(model, options.dtype, rows, layout);
  TrafficPrediction micro_batch = forward_traffic(model, options.dtype, rows, layout);
  group.sum(micro_batch, 1);     // head: the gradient of what f gave it
  group.gather(micro_batch, 1);  // head: the weight gradient's input again
  add(micro_batch, layer_traffic(model, options.dtype, options.recompute, rows, layout).backward,
      model.num_hidden_layers);
  group.gather(micro_batch, 1);  // embedding
  TrafficPrediction step;
  add(step, micro_batch, layout.dp * options.micro_batches());
  add_gradient_sums(step, model, options.dtype, layout);
  return step;
}

}  // namespace escalera
