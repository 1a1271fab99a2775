#include "step02_fsdp/fully_sharded.h"

#include <algorithm>

namespace escalera {
namespace {

bool uses(const Unit& unit, const Bucket& bucket) {
  return std::find(unit.uses().begin(), unit.uses().end(), &bucket) != unit.uses().end();
}

/// The fewest units that use all of `buckets`. A tied table and the final norm are two buckets but what one visit of the head
/// needs, so units that need more buckets are taken first.
Index units_that_use(const Model& model, std::vector<const Bucket*> buckets) {
  const std::vector<const Bucket*> all = buckets;
  std::vector<const Unit*> units;
  for (const auto& unit : model.units()) units.push_back(unit.get());
  std::stable_sort(units.begin(), units.end(), [](auto* a, auto* b) { return a->uses().size() > b->uses().size(); });
  Index count = 0;
  for (const Unit* unit : units) {
    const bool complete = std::ranges::all_of(unit->uses(), [&](Bucket* used) { return std::ranges::count(all, used) > 0; });
    if (complete && std::erase_if(buckets, [&](const Bucket* left) { return uses(*unit, *left); }) > 0) count++;
  }
  return count;
}

}  // namespace

FullySharded::FullySharded(Communicator& shard, Communicator& replicas, const ShardingSettings& settings)
    : shard_(shard), replicas_(replicas), settings_(settings) {
  if (shard_.size() == 1) settings_.zero = 0;  // one rank has nothing to share out
}

void FullySharded::shard(Model& model) {
  model_ = &model;
  for (Bucket& bucket : model.buckets()) {
    bucket.shard = &shard_;
    bucket.replicas = &replicas_;
    // Equal parts, because collectives want them; what the last ones have too much is padding.
    bucket.shard_size = (bucket.size + shard_.size() - 1) / shard_.size();
    bucket.shard_begin = shard_.rank() * bucket.shard_size;
    bucket.whole_gradients = settings_.zero < 2;
    bucket.whole_weights = settings_.zero < 3;
  }
}

// ---- Weights --------------------------------------------------------------------------------------------------------

void FullySharded::announce(std::span<Unit* const> visits) {
  visits_.assign(visits.begin(), visits.end());
  begun_ = 0;
  if (settings_.zero == 3) {
    for (auto& [bucket, gathered] : gathered_) bucket->weights = {};
    gathered_.clear();
  }
}

void FullySharded::after_update() {
  if (settings_.zero == 0 || settings_.zero == 3) return;
  // Each rank has updated its part of weights that all hold whole. They are fetched in the order in which forward wants them,
  // the later ones while it computes with the earlier ones.
  for (Bucket& bucket : model_->buckets()) gather(bucket);
}

void FullySharded::finish_gathers() {
  for (auto& [bucket, gathered] : gathered_) gathered.work.wait();
}

void FullySharded::before_forward(Unit& unit) {
  begin_visit(unit);
}

void FullySharded::begin_visit(Unit& unit) {
  const auto visit = static_cast<std::size_t>(begun_++);
  require(visit < visits_.size() && visits_[visit] == &unit, "{} is visited but was not announced",
          unit.name());
  if (settings_.zero == 3) {
    // The window: this visit and the next ones. Gathers run one after another beside the computation, so that of the visit
    // itself is complete first.
    const std::size_t end =
        std::min(visits_.size(), visit + static_cast<std::size_t>(settings_.prefetch) + 1);
    for (std::size_t next = visit; next < end; next++) {
      for (Bucket* bucket : visits_[next]->uses()) {
        if (!gathered_.contains(bucket)) gather(*bucket);
      }
    }
  }
  for (Bucket* bucket : unit.uses()) {
    if (const auto found = gathered_.find(bucket); found != gathered_.end()) found->second.work.wait();
  }
}

void FullySharded::gather(Bucket& bucket) {
  if (!bucket.whole_weights) {
    bucket.weights = model_->ops().device().empty(1, bucket.flat_size(), bucket.weight_shard.dtype(),
                                                  MemoryCategory::communication);
  }
  Gathered& gathered = gathered_[&bucket];
  gathered.weights = bucket.weights;
  if (settings_.prefetch > 0) {
    gathered.work = shard_.all_gather_async(bucket.weight_shard, bucket.weights);
  } else {
    shard_.all_gather(bucket.weight_shard, bucket.weights);
  }
  note_peak();
}

void FullySharded::after_forward(Unit&) {
  end_visit();
  retire_reductions(begun_ - settings_.prefetch);
}

void FullySharded::after_backward(Unit&) {
  end_visit();
}

void FullySharded::end_visit() {
  if (settings_.zero < 3) return;
  std::erase_if(gathered_, [&](auto& entry) {
    auto& [bucket, gathered] = entry;
    if (needed_soon(*bucket)) return false;
    bucket->weights = {};
    return true;
  });
}

bool FullySharded::needed_soon(const Bucket& bucket) const {
  const auto first = visits_.begin() + begun_;  // the visit after the one that ends
  const Index left = visits_.end() - first;
  const Index window = settings_.reshard_after_forward ? std::min(left, settings_.prefetch + 1) : left;
  return std::any_of(first, first + window, [&](const Unit* unit) { return uses(*unit, bucket); });
}

void FullySharded::note_peak() {
  if (settings_.zero < 3) return;
  Index bytes = 0;
  std::vector<const Bucket*> there;
  for (const auto& [bucket, gathered] : gathered_) {
    bytes += gathered.weights.bytes();
    there.push_back(bucket);
  }
  peak_bytes_ = std::max(peak_bytes_, bytes);
  if (there.size() <= peak_buckets_) return;  // fewer buckets are no more units
  peak_buckets_ = there.size();
  peak_units_ = std::max(peak_units_, units_that_use(*model_, there));
}

// ---- Gradients ------------------------------------------------------------------------------------------------------

void FullySharded::before_backward(Unit& unit) {
  begin_visit(unit);
  if (settings_.zero < 2) return;
  // A whole gradient exists from a unit's backward to its reduction. That of a tied table is opened by the head and reduced
  // behind the embedding.
  for (Bucket* bucket : unit.uses()) {
    if (bucket->gradients.empty()) {
      bucket->gradients = model_->ops().device().zeros(1, bucket->flat_size(), bucket->gradient_shard.dtype(),
                                                       MemoryCategory::communication);
    }
  }
  for (Bucket* bucket : unit.owns()) open_[bucket]++;
}

void FullySharded::after_weight_gradients(Unit& unit, bool last_micro_batch) {
  // With whole gradients, sums over micro-batches are local until the last. Who keeps only a part must send the rest away
  // each time: the price of ZeRO-2 and 3 with accumulation.
  for (Bucket* bucket : unit.owns()) {
    // Where weight halves are deferred, a later micro-batch may be in the midst of adding to the same gradient.
    const bool complete = settings_.zero < 2 ? last_micro_batch : --open_[bucket] == 0;
    if (complete) reduce(*bucket, last_micro_batch);
  }
  retire_reductions(begun_ - settings_.prefetch);
}

Tensor FullySharded::as_sent(const Tensor& gradients) const {
  if (settings_.reduce_dtype.value_or(gradients.dtype()) == gradients.dtype()) return gradients;
  Ops& ops = model_->ops();
  const Tensor narrow =
      ops.device().empty(1, gradients.size(), *settings_.reduce_dtype, MemoryCategory::communication);
  ops.convert(gradients, narrow);
  return narrow;
}

void FullySharded::reduce(Bucket& bucket, bool last) {
  if (shard_.size() == 1) return sum_over_replicas(bucket);
  Reduction& reduction = reductions_.emplace_back();
  reduction.bucket = &bucket;
  reduction.visit = begun_ - 1;
  reduction.last = last;
  reduction.buffer = as_sent(bucket.gradients);
  reduction.part = reduction.buffer.slice_flat(bucket.shard_begin, bucket.shard_size);
  if (!bucket.whole_gradients) bucket.gradients = {};  // the next micro-batch opens a new one
  // In place: each rank writes its own part, which nobody else reads.
  if (settings_.prefetch > 0) {
    reduction.work = shard_.reduce_scatter_async(reduction.buffer, reduction.part);
  } else {
    shard_.reduce_scatter(reduction.buffer, reduction.part);
  }
}

void FullySharded::retire_reductions(Index started_before) {
  while (!reductions_.empty() && reductions_.front().visit < started_before) {
    finish(reductions_.front());
    reductions_.pop_front();
  }
}

void FullySharded::finish(Reduction& reduction) {
  reduction.work.wait();
  Ops& ops = model_->ops();
  const Tensor& shard = reduction.bucket->gradient_shard;
  const bool converted = reduction.part.dtype() != shard.dtype();
  if (!reduction.bucket->whole_gradients) {
    // Added, not copied: the shard holds the sum of the earlier micro-batches.
    Tensor part = reduction.part;
    if (converted) {
      part = ops.device().empty(1, shard.size(), shard.dtype(), MemoryCategory::workspace);
      ops.convert(reduction.part, part);
    }
    ops.add(shard, part, shard);
  } else if (converted) {
    ops.convert(reduction.part, shard);
  }
  reduction.buffer = reduction.part = {};
  if (reduction.last) sum_over_replicas(*reduction.bucket);
}

void FullySharded::sum_over_replicas(Bucket& bucket) {
  // Once per step and on the shard alone: sums over micro-batches, shard groups and replicas may be taken in any order.
  if (replicas_.size() == 1) return;
  ReplicaSum& sum = replica_sums_.emplace_back();
  sum.bucket = &bucket;
  sum.buffer = as_sent(bucket.gradient_shard);
  if (settings_.prefetch > 0) {
    sum.work = replicas_.all_reduce_async(sum.buffer);
  } else {
    replicas_.all_reduce(sum.buffer);
    finish(sum);
    replica_sums_.pop_back();
  }
}

void FullySharded::finish(ReplicaSum& sum) {
  sum.work.wait();
  const Tensor& shard = sum.bucket->gradient_shard;
  if (sum.buffer.dtype() != shard.dtype()) model_->ops().convert(sum.buffer, shard);
}

void FullySharded::finish_step() {
  retire_reductions(begun_);
  for (ReplicaSum& sum : replica_sums_) finish(sum);
  replica_sums_.clear();
}

// ---- Requests -------------------------------------------------------------------------------------------------------

void validate_sharding(const ShardingSettings& settings, std::optional<int> shard_size, int ranks,
                       DType dtype) {
  if (shard_size) {
    int below = std::min(*shard_size, ranks);  // the nearest smaller size that works
    while (ranks % below != 0) below--;
    require<UsageError>(
        ranks % *shard_size == 0,
        "--shard-size {} does not divide the {} data-parallel ranks; use --shard-size {} or {}", *shard_size,
        ranks, below, below == ranks ? 1 : ranks);
    require<UsageError>(settings.zero > 0 || *shard_size == 1,
                        "--shard-size {} with --zero 0, which shares nothing out; use --zero 1, 2 or 3, or "
                        "leave --shard-size out",
                        *shard_size);
  }
  require<UsageError>(settings.reshard_after_forward || settings.zero == 3,
                      "--no-reshard-after-forward with --zero {}, which never gives weights back; use --zero 3, or leave "
                      "--no-reshard-after-forward out",
                      settings.zero);
  if (settings.reduce_dtype) {
    const DType wide = accumulation_dtype(dtype);
    require<UsageError>(
        wide != DType::float64,
        "--reduce-dtype {} with --dtype float64: gradients would lose the digits that float64 is for; leave "
        "--reduce-dtype out",
        to_string(*settings.reduce_dtype));
  }
}

}  // namespace escalera
