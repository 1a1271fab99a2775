// The table of what is shared out: measured beside the formulas of this chapter.
// defines: sharding_report(), predict_memory(), describe()
#pragma once

#include <string>

#include "common/core/memory.h"
#include "step02_fsdp/formulas.h"

namespace escalera {

/// Peaks of parameters, gradients, optimizer and gathered weights on a rank beside the formulas, and the padding in them.
/// `ledger` is this rank's. Collective; the text is the same on all ranks.
std::string sharding_report(Communicator& world, const MemoryLedger& ledger, const FullySharded& fsdp,
                            const ShardedRun& run);

/// What common predicts for a rank of plain data parallelism, with the rows that sharding changes.
MemoryPrediction predict_memory(const TrainOptions& options, const ShardedRun& run);

/// "ZeRO-3, 4 shards x 2 replicas, prefetch 1, ..." for the configuration table.
std::string describe(const ShardedRun& run);

}  // namespace escalera
