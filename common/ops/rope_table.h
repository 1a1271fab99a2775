// The angles of the rotary embedding, once per model.
// defines: make_rope_table()
#pragma once

#include "common/core/tensor.h"

namespace escalera {

/// The table that Ops::rope_split_forward reads: [positions, head_size] of type `wide`, in each row head_size / 2 cosines and
/// as many sines of the angles position * theta^(-2 i / head_size). Angles and functions are computed in float64: in float32
/// an angle of some thousands would be wrong in the fourth digit.
Tensor make_rope_table(Device& device, Index positions, Index head_size, double theta, DType wide);

}  // namespace escalera
