// The collectives among ranks of one host, through their shared window.
// defines: run_collective()
#pragma once

#include "common/comm/mpi/window.h"

namespace escalera {

/// Carries out `call`, which is no transfer, as this rank of `window`. Sums are taken in rank order.
void run_collective(Window& window, const Call& call);

}  // namespace escalera
