#include "step02_fsdp/formulas.h"

#include <algorithm>

#include "common/train/formulas.h"

namespace escalera {
namespace {

// ---- The visits of a step, as the options imply them ------------------------------------------------------------------

/// Number of a bucket: 0 the embedding's table, 1 to L the blocks, L + 1 the final norm, with the head's table unless it is tied.
using BucketNumber = Index;

struct Visit {
  std::vector<BucketNumber> uses;
  std::vector<BucketNumber> reduces;  // after its weight gradients; none in a forward
  bool last = false;                  // of its bucket's backwards in the step
};

std::vector<Index> bucket_sizes(const ModelConfig& model) {
  const Index table = model.vocab_size * model.hidden_size;
  const Index tables = model.tie_word_embeddings ? table : 2 * table;
  const Index block = (parameter_count(model) - tables - model.hidden_size) / model.num_hidden_layers;
  std::vector<Index> sizes(static_cast<std::size_t>(model.num_hidden_layers + 2), block);
  sizes.front() = table;
  sizes.back() = tables - table + model.hidden_size;
  return sizes;
}

Index part(Index size, int shards) { return (size + shards - 1) / shards; }

std::vector<Visit> forward_visits(const ModelConfig& model) {
  const BucketNumber head = model.num_hidden_layers + 1;
  std::vector<Visit> visits;
  for (BucketNumber unit = 0; unit <= head; unit++) visits.push_back({{unit}, {}});
  if (model.tie_word_embeddings) visits.back().uses.push_back(0);
  return visits;
}

std::vector<Visit> step_visits(const ModelConfig& model, Index micro_batches) {
  const std::vector<Visit> forward = forward_visits(model);
  std::vector<Visit> visits;
  for (Index number = 0; number < micro_batches; number++) {
    visits.insert(visits.end(), forward.begin(), forward.end());
    for (std::size_t unit = forward.size(); unit-- > 0;) {
      visits.push_back({forward[unit].uses, {static_cast<BucketNumber>(unit)}, number + 1 == micro_batches});
    }
  }
  return visits;
}

bool contains(const std::vector<BucketNumber>& buckets, BucketNumber bucket) {
  return std::find(buckets.begin(), buckets.end(), bucket) != buckets.end();
}

/// The places in `visits` where a bucket is used.
std::vector<Index> places(const std::vector<Visit>& visits, BucketNumber bucket) {
  std::vector<Index> result;
  for (std::size_t i = 0; i < visits.size(); i++) {
    if (contains(visits[i].uses, bucket)) result.push_back(static_cast<Index>(i));
  }
  return result;
}

/// Visits from `begin` to `end`, both included, during which a bucket is gathered without a break.
struct Stay {
  Index begin, end;
};

/// Between two uses a bucket stays if the second is in the window behind the first, so at most prefetch + 1 visits later.
/// Either way it arrives `prefetch` visits early.
std::vector<Stay> stays(const std::vector<Visit>& visits, BucketNumber bucket, const ShardingSettings& sharding) {
  std::vector<Stay> result;
  for (const Index place : places(visits, bucket)) {
    if (!result.empty() && (!sharding.reshard_after_forward || place - result.back().end <= sharding.prefetch + 1)) {
      result.back().end = place;
    } else {
      result.push_back({std::max<Index>(0, place - sharding.prefetch), place});
    }
  }
  return result;
}

int effective_stage(const ShardedRun& run) { return run.shards > 1 ? run.sharding.zero : 0; }

Index bytes_in_transit(const ShardedRun& run) {
  return size_of(run.sharding.reduce_dtype.value_or(accumulation_dtype(run.dtype)));
}

/// Elements of all buckets with padding.
Index padded_count(const ShardedRun& run) {
  Index count = 0;
  for (const Index size : bucket_sizes(run.model)) count += run.shards * part(size, run.shards);
  return count;
}

Index gathered_elements(const ShardedRun& run, const std::vector<Visit>& visits) {
  const std::vector<Index> sizes = bucket_sizes(run.model);
  Index count = 0;
  for (std::size_t bucket = 0; bucket < sizes.size(); bucket++) {
    const auto gathers = stays(visits, static_cast<BucketNumber>(bucket), run.sharding).size();
    count += static_cast<Index>(gathers) * run.shards * part(sizes[bucket], run.shards);
  }
  return count;
}

// ---- Bytes of the category `communication`, visit by visit ------------------------------------------------------------

/// What is there in one moment of a visit: while it computes, or `at_end`, when its weights have gone and its gradient is about
/// to.
struct Moment {
  Index visit = 0;
  bool at_end = false;
};

class Timeline {
 public:
  explicit Timeline(const ShardedRun& run) : run_(run), stage_(effective_stage(run)) {
    // Three micro-batches show all there is: a first, a middle and a last; more if the window is wider than one of them.
    const Index per_micro_batch = 2 * (run.model.num_hidden_layers + 2);
    visits_ = step_visits(run.model, std::min(run.micro_batches, 3 + 2 * (run.sharding.prefetch / per_micro_batch + 1)));
    for (const Index size : bucket_sizes(run.model)) {
      padded_.push_back(run.shards * part(size, run.shards));
      stays_.push_back(stays(visits_, static_cast<BucketNumber>(stays_.size()), run.sharding));
    }
    for (std::size_t i = 0; i < visits_.size(); i++) {
      for (const BucketNumber bucket : visits_[i].reduces) reductions_.push_back(reduction(bucket, static_cast<Index>(i)));
    }
  }

  /// Gathered weights.
  Index gathered(Moment now) const {
    if (stage_ < 3) return 0;
    Index bytes = 0;
    for (std::size_t bucket = 0; bucket < stays_.size(); bucket++) {
      for (const Stay& stay : stays_[bucket]) {
        const bool there = stay.begin <= now.visit && (now.at_end ? stay.end > now.visit : stay.end >= now.visit);
        if (there) bytes += padded_[bucket] * size_of(run_.dtype);
      }
    }
    return bytes;
  }

  /// Whole gradients that exist for a while only: in stages 2 and 3, from the first backward that adds to them to their
  /// reduction, and `prefetch` visits longer unless a converted copy travels in their place.
  Index temporaries(Moment now) const {
    if (stage_ < 2) return 0;
    const Index lag = converts() ? 0 : run_.sharding.prefetch;
    Index bytes = 0;
    for (const Reduction& reduction : reductions_) {
      if (reduction.opened <= now.visit && now.visit <= reduction.visit + lag) bytes += padded(reduction) * wide();
    }
    return bytes;
  }

  /// Gradients in the type in which they travel, where that is another one: whole ones on their way to the shards, then
  /// shards on their way to the replicas, which are waited for at the end of the step.
  Index converted(Moment now) const {
    if (!converts()) return 0;
    const Index prefetch = run_.sharding.prefetch;
    Index bytes = 0;
    for (const Reduction& reduction : reductions_) {
      const bool begun = reduction.visit < now.visit || (reduction.visit == now.visit && now.at_end);
      if (!begun || (stage_ < 2 && !reduction.last)) continue;
      const bool to_shards = run_.shards > 1 && now.visit <= reduction.visit + prefetch;
      const bool to_replicas = run_.replicas > 1 && reduction.last && !to_shards &&
                               (prefetch > 0 || (run_.shards == 1 && reduction.visit == now.visit));
      if (to_shards) bytes += padded(reduction) * bytes_in_transit(run_);
      if (to_replicas) bytes += padded(reduction) / run_.shards * bytes_in_transit(run_);
    }
    return bytes;
  }

  template <class Bytes>
  Index largest(Bytes bytes) const {
    Index most = 0;
    for (Index visit = 0; visit < static_cast<Index>(visits_.size()); visit++) {
      for (const bool at_end : {false, true}) most = std::max(most, bytes(Moment{visit, at_end}));
    }
    return most;
  }

 private:
  struct Reduction {
    BucketNumber bucket;
    Index opened;  // the first backward of the micro-batch that adds to the gradient: a tied table's is the head's
    Index visit;   // behind which it is reduced
    bool last;     // micro-batch
  };

  Reduction reduction(BucketNumber bucket, Index visit) const {
    Index opened = visit;
    for (Index i = visit; i >= 0 && !visits_[static_cast<std::size_t>(i)].reduces.empty(); i--) {
      if (contains(visits_[static_cast<std::size_t>(i)].uses, bucket)) opened = i;
    }
    return {bucket, opened, visit, visits_[static_cast<std::size_t>(visit)].last};
  }
  Index wide() const { return size_of(accumulation_dtype(run_.dtype)); }
  bool converts() const { return bytes_in_transit(run_) != wide(); }
  Index padded(const Reduction& reduction) const { return padded_[static_cast<std::size_t>(reduction.bucket)]; }

  const ShardedRun& run_;
  int stage_;
  std::vector<Visit> visits_;
  std::vector<Index> padded_;
  std::vector<std::vector<Stay>> stays_;  // per bucket
  std::vector<Reduction> reductions_;
};

}  // namespace

ShardedMemory sharded_memory(const ShardedRun& run) {
  const StaticMemory whole = static_memory(run.model, run.dtype, run.optimizer);
  const Index count = parameter_count(run.model), padded = padded_count(run);
  const int stage = effective_stage(run);
  const auto bytes = [&](Index whole_bytes, bool sharded) {
    const Index element = whole_bytes / count;
    return ShardedMemory::Bytes{(sharded ? padded / run.shards : padded) * element,
                                (sharded ? 1 : run.shards) * run.replicas * (padded - count) * element};
  };
  return {bytes(whole.parameters, stage >= 3), bytes(whole.gradients, stage >= 2), bytes(whole.optimizer, stage >= 1)};
}

Index gathered_peak(const ShardedRun& run) {
  const Timeline timeline(run);
  return timeline.largest([&](Moment now) { return timeline.gathered(now); });
}

Index communication_peak(const ShardedRun& run) {
  const Timeline timeline(run);
  return timeline.largest(
      [&](Moment now) { return timeline.gathered(now) + timeline.temporaries(now) + timeline.converted(now); });
}

TrafficPrediction step_traffic(const ShardedRun& run) {
  const int stage = effective_stage(run);
  const Index padded = padded_count(run);
  const Index shards = run.shards, replicas = run.replicas;
  const Index gathered = stage == 0   ? 0
                         : stage == 3 ? gathered_elements(run, step_visits(run.model, run.micro_batches))
                                      : padded;
  const Index reductions = stage >= 2 ? run.micro_batches : 1;
  TrafficPrediction traffic;
  traffic[Operation::all_gather] = replicas * (shards - 1) * gathered * size_of(run.dtype);
  traffic[Operation::reduce_scatter] = replicas * (shards - 1) * reductions * padded * bytes_in_transit(run);
  traffic[Operation::all_reduce] = 2 * (replicas - 1) * padded * bytes_in_transit(run);
  return traffic;
}

TrafficPrediction run_traffic(const ShardedRun& run, Index steps, Index passes) {
  const int stage = effective_stage(run);
  TrafficPrediction traffic = step_traffic(run);
  const Index first_weights = stage == 1 || stage == 2 ? traffic[Operation::all_gather] : 0;
  for (Index& bytes : traffic.bytes) bytes *= steps;
  traffic[Operation::all_gather] += first_weights;
  if (stage == 3) {
    traffic[Operation::all_gather] += Index{run.replicas} * (run.shards - 1) * size_of(run.dtype) * passes *
                                      gathered_elements(run, forward_visits(run.model));
  }
  return traffic;
}

}  // namespace escalera
