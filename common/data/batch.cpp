#include "common/data/batch.h"

#include <algorithm>

namespace escalera {

std::vector<Index> BatchShape::samples(Index consumed, Index micro_batch, Index dp_rank) const {
  std::vector<Index> result(static_cast<std::size_t>(micro_batch_size));
  for (Index row = 0; row < micro_batch_size; ++row) {
    result[static_cast<std::size_t>(row)] = sample_index(consumed, micro_batch, dp_rank, row);
  }
  return result;
}

BatchShape resolve_batch(Index global_batch_size, Index micro_batch_size, Index accumulation,
                         Index data_parallel) {
  require<UsageError>(micro_batch_size > 0, "--micro-batch-size {}: must be at least 1", micro_batch_size);
  require<UsageError>(data_parallel > 0, "--dp {}: must be at least 1", data_parallel);
  require<UsageError>(global_batch_size >= 0, "--global-batch-size {}: must be at least 1",
                      global_batch_size);
  require<UsageError>(accumulation >= 0, "--gradient-accumulation-steps {}: must be at least 1",
                      accumulation);
  if (global_batch_size == 0) return {micro_batch_size, std::max<Index>(accumulation, 1), data_parallel};

  const Index per_pass = micro_batch_size * data_parallel;
  if (global_batch_size % per_pass != 0) {
    const Index below = global_batch_size / per_pass * per_pass, above = below + per_pass;
    const std::string fitting = below > 0 ? fmt::format("{} or {}", below, above) : fmt::format("{}", above);
    fail<UsageError>(
        "--global-batch-size {} is not a multiple of --micro-batch-size {} x --dp {} = {} sequences; {} "
        "would work",
        global_batch_size, micro_batch_size, data_parallel, per_pass, fitting);
  }
  const BatchShape shape{micro_batch_size, global_batch_size / per_pass, data_parallel};
  require<UsageError>(
      accumulation == 0 || accumulation == shape.accumulation,
      "--gradient-accumulation-steps {} contradicts --global-batch-size {} with --micro-batch-size {} and "
      "--dp {}, which make it {}; leave one of them out",
      accumulation, global_batch_size, micro_batch_size, data_parallel, shape.accumulation);
  return shape;
}

void Batch::resize(Index sequences_, Index seq_length_) {
  sequences = sequences_;
  seq_length = seq_length_;
  tokens.resize(static_cast<std::size_t>(sequences * seq_length));
  targets.resize(tokens.size());
}

Index Batch::unmasked_targets() const {
  return std::count_if(targets.begin(), targets.end(), [](std::int32_t target) { return target >= 0; });
}

}  // namespace escalera
