// For communicators of tensors on a GPU, which leave part of their work to a communicator of the host.
// defines: private_copy(), run_on_host()
#pragma once

#include <memory>

#include "common/comm/communicator.h"

namespace escalera {

/// A communicator of the same ranks and name that nobody else uses. What is traced are the operations on device memory, so it
/// traces nothing itself. Collective.
std::unique_ptr<Communicator> private_copy(Communicator& host);

/// Runs `call`, whose buffers are in host memory, on `host` and waits for it.
void run_on_host(Communicator& host, const Call& call);

}  // namespace escalera
