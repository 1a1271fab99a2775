// Which ranks are on one host.
// defines: local_rank(), host_identity()
#pragma once

#include "common/comm/communicator.h"

namespace escalera {

/// The number of lower ranks of `world` on this rank's host: 0, 1, ... on each host. Collective.
int local_rank(Communicator& world);

/// This host's name, a blank, and what tells it from others of that name.
std::string host_identity();

}  // namespace escalera
