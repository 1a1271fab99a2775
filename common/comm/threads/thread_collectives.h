// The collectives among threads, which may read each other's memory.
// defines: run_collective()
#pragma once

#include "common/comm/threads/thread_group.h"

namespace escalera {

/// Carries out `call`, which is no transfer, as `rank` of `group`. Returns when the result is there and no other rank
/// needs this one's buffers any more.
void run_collective(ThreadGroup& group, int rank, const Call& call);

}  // namespace escalera
