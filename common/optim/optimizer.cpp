#include "common/optim/optimizer.h"

#include <algorithm>

namespace escalera {
namespace {

class AdamW final : public Optimizer {
 public:
  AdamW(Ops& ops, std::deque<Bucket>& buckets, const OptimizerSettings& settings) : Optimizer(ops, buckets, settings) {
    for (const Bucket& bucket : buckets) {
      const DType wide = bucket.master.dtype();
      first_moment_.push_back(ops.device().zeros(1, bucket.shard_size, wide, MemoryCategory::optimizer));
      second_moment_.push_back(ops.device().zeros(1, bucket.shard_size, wide, MemoryCategory::optimizer));
    }
  }

 protected:
  void update_run(const Run& run, double learning_rate, double gradient_scale) override {
    AdamWSettings settings;
    settings.learning_rate = learning_rate;
    settings.beta1 = settings_.beta1;
    settings.beta2 = settings_.beta2;
    settings.epsilon = settings_.epsilon;
    settings.weight_decay = run.weight_decay;
    settings.step = steps_;
    settings.gradient_scale = gradient_scale;
    ops_.adamw(run.master, run.gradient, first_moment_[run.bucket].slice_flat(run.begin, run.master.size()),
               second_moment_[run.bucket].slice_flat(run.begin, run.master.size()), run.weights, settings);
  }

 private:
  std::vector<Tensor> first_moment_, second_moment_;  // per bucket, [1, shard_size] wide
};

class Sgd final : public Optimizer {
 public:
  Sgd(Ops& ops, std::deque<Bucket>& buckets, const OptimizerSettings& settings) : Optimizer(ops, buckets, settings) {}

 protected:
  void update_run(const Run& run, double learning_rate, double gradient_scale) override {
    ops_.sgd(run.master, run.gradient, run.weights, learning_rate, run.weight_decay, gradient_scale);
  }
};

}  // namespace

void Optimizer::update(double learning_rate, double gradient_scale) {
  steps_++;
  for (std::size_t number = 0; number < buckets_.size(); number++) {
    const Bucket& bucket = buckets_[number];
    const Index shard_end = bucket.shard_begin + bucket.shard_size;
    for (std::size_t first = 0; first < bucket.parameters.size();) {
      // Neighbours with the same decay form one run, cut at the shard's ends.
      const bool decay = bucket.parameters[first].decay;
      std::size_t last = first;
      while (last + 1 < bucket.parameters.size() && bucket.parameters[last + 1].decay == decay) last++;
      const Index begin = std::max(bucket.parameters[first].offset, bucket.shard_begin);
      const Index end = std::min(bucket.parameters[last].offset + bucket.parameters[last].local_size(), shard_end);
      first = last + 1;
      if (begin >= end) continue;
      Run run;
      run.bucket = number;
      run.begin = begin - bucket.shard_begin;
      run.master = bucket.master.slice_flat(run.begin, end - begin);
      run.gradient = bucket.gradient_shard.slice_flat(run.begin, end - begin);
      if (bucket.weight_shard.dtype() != bucket.master.dtype()) {
        run.weights = bucket.weight_shard.slice_flat(run.begin, end - begin);
      }
      run.weight_decay = decay ? settings_.weight_decay : 0.0;
      update_run(run, learning_rate, gradient_scale);
    }
  }
}

std::unique_ptr<Optimizer> make_optimizer(Ops& ops, std::deque<Bucket>& buckets, const OptimizerSettings& settings) {
  if (settings.kind == OptimizerSettings::Kind::sgd) return std::make_unique<Sgd>(ops, buckets, settings);
  return std::make_unique<AdamW>(ops, buckets, settings);
}

double clip_factor(double norm, double limit) { return limit > 0 && norm > limit ? limit / norm : 1.0; }

}  // namespace escalera
