#include "step02_fsdp/formulas.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "common/train/formulas.h"

namespace escalera {
namespace {

// ---- The visits of a step, as the options imply them ------------------------------------------------------------------

/// Number of a bucket: 0 is the embedding's table, 1 to L are the blocks, L + 1 is the final norm, with the head's table unless
/// that is tied.
using BucketNumber = std::size_t;

struct Visit {
  std::vector<BucketNumber> uses;
  bool backward = false;
  bool last = false;         // of the bucket's backwards in the step
  BucketNumber reduces = 0;  // in a backward: behind its weight gradients
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

/// Sizes with padding.
std::vector<Index> padded_sizes(const ShardedRun& run) {
  std::vector<Index> sizes = bucket_sizes(run.model);
  for (Index& size : sizes) size = run.shards * ((size + run.shards - 1) / run.shards);
  return sizes;
}

Index padded_count(const ShardedRun& run) {
  const std::vector<Index> sizes = padded_sizes(run);
  return std::accumulate(sizes.begin(), sizes.end(), Index{0});
}

std::vector<Visit> forward_visits(const ModelConfig& model) {
  const auto head = static_cast<BucketNumber>(model.num_hidden_layers + 1);
  std::vector<Visit> visits;
  for (BucketNumber unit = 0; unit <= head; unit++) visits.push_back({{unit}});
  if (model.tie_word_embeddings) visits.back().uses.push_back(0);
  return visits;
}

std::vector<Visit> step_visits(const ModelConfig& model, Index micro_batches) {
  const std::vector<Visit> forward = forward_visits(model);
  std::vector<Visit> visits;
  for (Index number = 0; number < micro_batches; number++) {
    visits.insert(visits.end(), forward.begin(), forward.end());
    for (BucketNumber unit = forward.size(); unit-- > 0;) {
      visits.push_back({forward[unit].uses, true, number + 1 == micro_batches, unit});
    }
  }
  return visits;
}

/// Visits `first` to `last`, during which a bucket is there without a break.
struct Stay {
  BucketNumber bucket;
  Index first, last;
};

/// Between two uses a bucket stays if the second is in the window behind the first, so at most prefetch + 1 visits later.
/// It arrives `prefetch` visits before the first of them.
std::vector<Stay> stays(const std::vector<Visit>& visits, const ShardingSettings& sharding) {
  std::vector<Stay> all;
  std::map<BucketNumber, std::size_t> latest;  // of each bucket, in `all`
  for (std::size_t i = 0; i < visits.size(); i++) {
    const auto visit = static_cast<Index>(i);
    for (const BucketNumber bucket : visits[i].uses) {
      const auto found = latest.find(bucket);
      if (found != latest.end() &&
          (!sharding.reshard_after_forward || visit - all[found->second].last <= sharding.prefetch + 1)) {
        all[found->second].last = visit;
      } else {
        latest[bucket] = all.size();
        all.push_back({bucket, std::max<Index>(0, visit - sharding.prefetch), visit});
      }
    }
  }
  return all;
}

int effective_stage(const ShardedRun& run) {
  return run.shards > 1 ? run.sharding.zero : 0;
}

Index bytes_in_transit(const ShardedRun& run) {
  return size_of(run.sharding.reduce_dtype.value_or(accumulation_dtype(run.dtype)));
}

/// Elements of all gathers of these visits, with padding.
Index gathered_elements(const ShardedRun& run, const std::vector<Visit>& visits) {
  const std::vector<Index> sizes = padded_sizes(run);
  Index count = 0;
  for (const Stay& stay : stays(visits, run.sharding)) count += sizes[stay.bucket];
  return count;
}

// ---- What is there when, in the category `communication` ----------------------------------------------------------------

/// Adds up what is there in each moment. A visit has two: moment 2 i while it computes, and 2 i + 1 when its weights have gone
/// and its gradient is about to.
class Timeline {
 public:
  explicit Timeline(std::size_t visits) : changes_(2 * visits + 1, 0) {}
  void add(Index first, Index last, Index bytes) {
    changes_[static_cast<std::size_t>(first)] += bytes;
    changes_[std::min(static_cast<std::size_t>(last) + 1, changes_.size() - 1)] -= bytes;
  }
  Index peak() const {
    Index now = 0, most = 0;
    for (std::size_t moment = 0; moment + 1 < changes_.size(); moment++)
      most = std::max(most, now += changes_[moment]);
    return most;
  }

 private:
  std::vector<Index> changes_;
};

/// Three micro-batches show all there is: a first, a middle and a last; more if the window is wider than one of them.
std::vector<Visit> typical_visits(const ShardedRun& run) {
  const Index per_micro_batch = 2 * (run.model.num_hidden_layers + 2);
  return step_visits(run.model,
                     std::min(run.micro_batches, 3 + 2 * (run.sharding.prefetch / per_micro_batch + 1)));
}

void add_gathered(const ShardedRun& run, const std::vector<Visit>& visits, Timeline& timeline) {
  if (effective_stage(run) < 3) return;
  const std::vector<Index> sizes = padded_sizes(run);
  for (const Stay& stay : stays(visits, run.sharding)) {
    timeline.add(2 * stay.first, 2 * stay.last, sizes[stay.bucket] * size_of(run.dtype));
  }
}

void add_gradients(const ShardedRun& run, const std::vector<Visit>& visits, Timeline& timeline) {
  const int stage = effective_stage(run);
  const Index wide = size_of(accumulation_dtype(run.dtype)), narrow = bytes_in_transit(run),
              lag = run.sharding.prefetch;
  const bool converted = narrow != wide;
  const std::vector<Index> sizes = padded_sizes(run);
  const Index end = 2 * static_cast<Index>(visits.size());
  Index head_backward = 0;
  for (Index i = 0; i < static_cast<Index>(visits.size()); i++) {
    const Visit& visit = visits[static_cast<std::size_t>(i)];
    if (!visit.backward) continue;
    if (visit.reduces + 1 == sizes.size()) head_backward = i;
    const Index size = sizes[visit.reduces];
    // Stages 2 and 3 have the whole gradient from the first backward that adds to it (of a tied table, the head's) until it is
    // reduced, or until a converted copy takes its place.
    const Index opened = run.model.tie_word_embeddings && visit.reduces == 0 ? head_backward : i;
    if (stage >= 2) timeline.add(2 * opened, 2 * (converted ? i : i + lag) + 1, size * wide);
    if (!converted || (stage < 2 && !visit.last)) continue;
    if (run.shards > 1) timeline.add(2 * i + 1, 2 * (i + lag) + 1, size * narrow);
    if (run.replicas == 1 || !visit.last) continue;
    // Parts on their way to the replicas are waited for at the end of the step, unless nothing lags. Then, behind a
    // reduction over shards, the part is less than the whole that has just gone.
    if (run.shards == 1) timeline.add(2 * i + 1, lag == 0 ? 2 * i + 1 : end, size * narrow);
    if (run.shards > 1 && lag > 0 && i + lag + 1 < static_cast<Index>(visits.size())) {
      timeline.add(2 * (i + lag + 1), end, size / run.shards * narrow);
    }
  }
}

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
  return {bytes(whole.parameters, stage >= 3), bytes(whole.gradients, stage >= 2),
          bytes(whole.optimizer, stage >= 1)};
}

Index gathered_peak(const ShardedRun& run) {
  const std::vector<Visit> visits = typical_visits(run);
  Timeline timeline(visits.size());
  add_gathered(run, visits, timeline);
  return timeline.peak();
}

Index communication_peak(const ShardedRun& run) {
  const std::vector<Visit> visits = typical_visits(run);
  Timeline timeline(visits.size());
  add_gathered(run, visits, timeline);
  add_gradients(run, visits, timeline);
  return timeline.peak();
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
