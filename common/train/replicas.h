// Whether ranks that should hold the same weights do.
// defines: check_replicas()
#pragma once

#include "common/comm/communicator.h"
#include "common/model/model.h"

namespace escalera {

/// Throws Error, naming the parameter and the first rank that differs, unless every stretch of weights that more than one rank
/// of `world` holds between visits is bitwise the same on all of them: the same sums and the same updates must have kept
/// replicas together. Costs a pass over the weights on the host. Collective; `step` is for the message.
void check_replicas(Communicator& world, Model& model, Index step);

}  // namespace escalera
