// A Call handed on to a communicator of the host.
// defines: run_on_host()
#pragma once

#include "common/comm/communicator.h"

namespace escalera::cuda {

/// Runs `call`, whose buffers are in host memory, on `host` and waits for it.
void run_on_host(Communicator& host, const Call& call);

}  // namespace escalera::cuda
