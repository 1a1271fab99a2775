// The plain fallback for chapters that do not teach how gradients are reduced: after backward, each gradient is summed over
// the groups in its record.
// defines: sum_gradients()
#pragma once

#include <deque>

#include "common/model/parameter.h"

namespace escalera {

/// Sums the gradients of every bucket in the order that the end of a step prescribes: over the bucket's replicas, then over the
/// extra group of each parameter (Slice::sum), then with the other stage's copy of a tied matrix. Blocks. For unsharded
/// buckets: throws Error if one has a shard group of more than one rank.
///
/// Extra sums are linear, so once per step is enough; neighbours with the same extra group travel together.
void sum_gradients(std::deque<Bucket>& buckets);

}  // namespace escalera
