#include "common/model/model.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/core/thread_pool.h"
#include "common/ops/rope_table.h"

namespace escalera {

Model::Model(Ops& ops, const ModelConfig& config, const ModelOptions& options, const Stage& stage, const Seams& seams)
    : ops_(ops),
      config_(config),
      options_(options),
      own_region_(std::make_unique<TensorRegion>(ops)),
      own_attention_(std::make_unique<LocalAttention>(ops)),
      hooks_(seams.hooks ? seams.hooks : &no_hooks_),
      attention_(seams.attention ? seams.attention : own_attention_.get()) {
  config_.validate();
  Device& device = ops.device();
  const Index positions = options.max_positions > 0 ? options.max_positions : config_.max_position_embeddings;
  TensorRegion& region = seams.region ? *seams.region : *own_region_;
  context_ = std::make_unique<UnitContext>(
      UnitContext{ops, config_, options.dtype, options.recompute, region, *attention_,
                  make_rope_table(device, positions, config_.head_size(), config_.rope_theta,
                                  accumulation_dtype(options.dtype)),
                  device.zeros(1, 1, DType::float64, MemoryCategory::workspace)});

  const auto new_bucket = [this](const std::string& name) -> Bucket& {
    buckets_.emplace_back();
    buckets_.back().name = name;
    return buckets_.back();
  };
  const Block::FeedForwardFactory dense = [this](UnitContext& context, Bucket& bucket, const std::string& prefix) {
    return std::make_unique<DenseFeedForward>(ops_, context.region, bucket, config_, options_.recompute, prefix);
  };

  Bucket* table_bucket = nullptr;
  int table = 0;
  const bool tied = config_.tie_word_embeddings;
  if (stage.embedding || (stage.head && tied)) {
    table_bucket = &new_bucket("model.embed_tokens");
    table = table_bucket->add(vocabulary_parameter(*context_, "model.embed_tokens.weight"));
  }
  if (stage.embedding) units_.push_back(std::make_unique<Embedding>(*context_, *table_bucket, table));
  for (Index layer = stage.first_layer; layer < stage.first_layer + stage.layers; layer++) {
    Bucket& bucket = new_bucket("model.layers." + std::to_string(layer));
    units_.push_back(std::make_unique<Block>(*context_, bucket, layer, seams.feed_forward ? seams.feed_forward : dense,
                                             std::span<Bucket* const>{}));
  }
  if (stage.head) {
    Bucket& bucket = new_bucket("lm_head");
    if (!tied) {
      table_bucket = &bucket;
      table = bucket.add(vocabulary_parameter(*context_, "lm_head.weight"));
    }
    auto head = std::make_unique<Head>(*context_, bucket, *table_bucket, table);
    head_ = head.get();
    units_.push_back(std::move(head));
  }
}

void Model::allocate() {
  Device& device = ops_.device();
  const DType dtype = options_.dtype, wide = accumulation_dtype(dtype);
  const auto held = [](const Bucket& bucket, bool whole) { return whole ? bucket.flat_size() : bucket.shard_size; };
  Index weights = 0, gradients = 0, masters = 0;
  for (const Bucket& bucket : buckets_) {
    weights += held(bucket, bucket.whole_weights);
    gradients += held(bucket, bucket.whole_gradients);
    masters += bucket.shard_size;
  }
  flat_weights_ = device.zeros(1, weights, dtype, MemoryCategory::parameters);
  flat_gradients_ = device.zeros(1, gradients, wide, MemoryCategory::gradients);
  if (dtype != wide) flat_master_ = device.zeros(1, masters, wide, MemoryCategory::optimizer);

  // The next stretch of a flat buffer, and the shard within it: all of it where only the shard is held.
  const auto deal_out = [&](const Tensor& flat, Index& begin, const Bucket& bucket, bool whole) {
    const Tensor stretch = flat.slice_flat(begin, held(bucket, whole));
    begin += stretch.size();
    return std::pair{whole ? stretch : Tensor(), whole ? stretch.slice_flat(bucket.shard_begin, bucket.shard_size) : stretch};
  };
  weights = gradients = masters = 0;
  for (Bucket& bucket : buckets_) {
    std::tie(bucket.weights, bucket.weight_shard) = deal_out(flat_weights_, weights, bucket, bucket.whole_weights);
    std::tie(bucket.gradients, bucket.gradient_shard) = deal_out(flat_gradients_, gradients, bucket, bucket.whole_gradients);
    bucket.master = dtype == wide ? bucket.weight_shard : flat_master_.slice_flat(masters, bucket.shard_size);
    masters += bucket.shard_size;
  }
}

void Model::initialize(std::uint64_t seed, int threads) {
  constexpr Index cost_of_a_value = 64;  // a normal deviate, against loading and storing an element
  ThreadPool pool(threads);
  for (Bucket& bucket : buckets_) {
    std::vector<double> values(static_cast<std::size_t>(bucket.shard_size), 0.0);
    for (const Parameter& parameter : bucket.parameters) {
      const InitialValues initial(parameter, seed);
      const Range part = bucket.in_shard(parameter);
      pool.for_ranges(part.size(), cost_of_a_value, [&](Index begin, Index end, int) {
        for (Index local = part.begin + begin; local < part.begin + end; local++) {
          const Index global = parameter.global_index(local);
          const Index place = parameter.offset + local - bucket.shard_begin;
          if (global >= 0) values[static_cast<std::size_t>(place)] = initial(global);
        }
      });
    }
    from_host(ops_.device(), values, bucket.master);
    ops_.convert(bucket.master, bucket.weight_shard);
  }
}

void Model::begin_step(Index micro_batches) {
  ops_.device().zero(flat_gradients_.data(), flat_gradients_.bytes());
  ops_.device().zero(context_->loss.data(), context_->loss.bytes());
  std::vector<Unit*> visits;
  for (Index micro_batch = 0; micro_batch < micro_batches; micro_batch++) {
    for (auto unit = units_.begin(); unit != units_.end(); ++unit) visits.push_back(unit->get());
    for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) visits.push_back(unit->get());
  }
  hooks_->announce(visits);
}

Tensor Model::forward(const Tensor& x, const MicroBatch& micro_batch, InFlight& in_flight) {
  in_flight.states.clear();
  in_flight.states.resize(units_.size());
  in_flight.inputs.assign(units_.size(), {});
  in_flight.deferred.clear();
  return run_forward(x, micro_batch, in_flight, units_.size(), true);
}

Tensor Model::run_forward(const Tensor& x, const MicroBatch& micro_batch, InFlight& in_flight, std::size_t units,
                          bool keep) {
  Tensor y = x;
  for (std::size_t i = 0; i < units; i++) {
    Unit& unit = *units_[i];
    hooks_->before_forward(unit);
    const auto span = ops_.device().span(trace_, "forward " + unit.name());
    const Tensor input = y;
    y = unit.forward(input, micro_batch, in_flight.states[i]);
    if (!keep || (options_.recompute == Recompute::full && unit.can_recompute())) {
      in_flight.states[i].reset();
      if (keep) in_flight.inputs[i] = input;
    }
    hooks_->after_forward(unit);
  }
  return y;
}

Tensor Model::backward(const Tensor& dy, const MicroBatch& micro_batch, InFlight& in_flight, bool last_micro_batch,
                       bool defer_weights) {
  in_flight.deferred.assign(units_.size(), WeightWork(ops_, defer_weights));
  Tensor d = dy;
  for (std::size_t i = units_.size(); i-- > 0;) {
    Unit& unit = *units_[i];
    hooks_->before_backward(unit);
    auto span = ops_.device().span(trace_, "backward " + unit.name());
    if (!in_flight.states[i]) {  // full recompute: run the unit's forward again, without hooks and side effects
      MicroBatch again = micro_batch;
      again.recomputing = true;
      unit.forward(in_flight.inputs[i], again, in_flight.states[i]);
      in_flight.inputs[i] = {};
    }
    d = unit.backward(d, micro_batch, *in_flight.states[i], in_flight.deferred[i]);
    in_flight.states[i].reset();
    span.reset();
    hooks_->after_backward(unit);
    if (!defer_weights) hooks_->after_weight_gradients(unit, last_micro_batch);
  }
  return d;
}

void Model::weight_gradients(InFlight& in_flight, bool last_micro_batch) {
  for (std::size_t i = units_.size(); i-- > 0;) {
    {
      const auto span = ops_.device().span(trace_, "weight gradients " + units_[i]->name());
      in_flight.deferred[i].run();
    }
    hooks_->after_weight_gradients(*units_[i], last_micro_batch);
  }
}

double Model::loss() { return to_host(ops_.device(), context_->loss)[0]; }

double Model::evaluate(const MicroBatch& micro_batch) {
  require(head_ != nullptr, "only the stage with the head has a loss");
  Device& device = ops_.device();
  const Tensor training_loss = context_->loss;
  context_->loss = device.zeros(1, 1, DType::float64, MemoryCategory::workspace);
  std::vector<Unit*> visits;
  for (const auto& unit : units_) visits.push_back(unit.get());
  hooks_->announce(visits);
  InFlight in_flight;
  in_flight.states.resize(units_.size());
  run_forward({}, micro_batch, in_flight, units_.size(), false);
  const double loss = to_host(device, context_->loss)[0];
  context_->loss = training_loss;
  return loss;
}

Tensor Model::next_token_logits(std::span<const std::int32_t> tokens, std::span<const std::int32_t> positions) {
  require(head_ != nullptr, "only the stage with the head has logits");
  MicroBatch micro_batch;
  micro_batch.sequences = 1;
  micro_batch.sequence_length = static_cast<Index>(tokens.size());
  micro_batch.tokens = tokens;
  micro_batch.positions = positions;
  InFlight in_flight;
  in_flight.states.resize(units_.size());
  const Tensor y = run_forward({}, micro_batch, in_flight, units_.size() - 1, false);
  return head_->logits(y.slice_rows(y.rows() - 1, 1));
}

double Model::squared_gradient_norm() {
  Device& device = ops_.device();
  const Tensor sum = device.zeros(1, 1, DType::float64, MemoryCategory::workspace);
  for (const Bucket& bucket : buckets_) {
    if (!bucket.counted) continue;
    // Neighbouring parameters that are counted go in one call; a shard boundary may cut a parameter.
    Index begin = -1;
    const auto flush = [&](Index end) {
      if (begin < 0) return;
      const Index first = std::max(begin, bucket.shard_begin);
      const Index last = std::min(end, bucket.shard_begin + bucket.shard_size);
      if (first < last) {
        ops_.squared_norm(bucket.gradient_shard.slice_flat(first - bucket.shard_begin, last - first), sum);
      }
      begin = -1;
    };
    for (const Parameter& parameter : bucket.parameters) {
      if (!parameter.slice.counted) {
        flush(parameter.offset);
      } else if (begin < 0) {
        begin = parameter.offset;
      }
    }
    flush(bucket.size);
  }
  return to_host(device, sum)[0];
}

}  // namespace escalera
