// Sums and maxima of several ranks' elements, always in rank order.
// defines: reduce_in_rank_order()
#pragma once

#include <span>

#include "common/comm/communicator.h"

namespace escalera {

/// destination[i] = sources[0][i] + sources[1][i] + ... from left to right, or their maximum (NaN if there is one).
/// bfloat16 is summed in float32 and rounded once. `destination` may be one of the sources.
void reduce_in_rank_order(std::span<const void* const> sources, void* destination, Index count, DType dtype,
                          ReduceOp op);

}  // namespace escalera
