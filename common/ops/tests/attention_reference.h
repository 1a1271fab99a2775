// Attention as plain loops in double, and how far results may be from it.
// defines: Values, Results, forward_loops(), backward_loops(), relative_error(), largest_error()
#pragma once

#include <limits>
#include <vector>

#include "common/ops/ops.h"

namespace escalera {

using Values = std::vector<double>;
inline constexpr double infinity = std::numeric_limits<double>::infinity();

struct Results {
  Values out, lse, dq, dk, dv;
};

/// What attention means. Probabilities come from `lse`, so that a part of the keys can be differentiated with the `lse` and
/// `out` of all of them; forward_loops() fills both.
/// @{
void forward_loops(const AttentionShape& s, const Values& q, const Values& k, const Values& v, Results& r);
void backward_loops(const AttentionShape& s, const Values& q, const Values& k, const Values& v, const Values& d_out,
                    Results& r);
/// @}

/// |a - b| / |b|, or |a - b| where |b| is below 1: inputs are of size 1, and a gradient that vanishes exactly (a
/// softmax over one key) is rounding noise on their scale. Infinities (lse of rows that see nothing) must be equal and
/// count for nothing; NaN never passes.
double relative_error(const Values& a, const Values& b);
/// Of all five.
double largest_error(const Results& a, const Results& b);

}  // namespace escalera
