#include "common/train/gradient_sums.h"

namespace escalera {
namespace {

void sum_over_extra_groups(const Bucket& bucket) {
  const std::vector<Parameter>& parameters = bucket.parameters;
  for (std::size_t first = 0; first < parameters.size();) {
    Communicator* group = parameters[first].slice.sum;
    std::size_t last = first;
    while (last + 1 < parameters.size() && parameters[last + 1].slice.sum == group) last++;
    const Index begin = parameters[first].offset;
    const Index end = parameters[last].offset + parameters[last].local_size();
    if (group) group->all_reduce(bucket.gradients.slice_flat(begin, end - begin));
    first = last + 1;
  }
}

}  // namespace

void sum_gradients(std::deque<Bucket>& buckets) {
  for (Bucket& bucket : buckets) {
    require(!bucket.shard || bucket.shard->size() == 1, "the gradients of {} are sharded over {} ranks", bucket.name,
            bucket.shard ? bucket.shard->size() : 1);
    if (bucket.replicas) bucket.replicas->all_reduce(bucket.gradients);
    sum_over_extra_groups(bucket);
    if (bucket.tied) bucket.tied->all_reduce(bucket.gradients);
  }
}

}  // namespace escalera
