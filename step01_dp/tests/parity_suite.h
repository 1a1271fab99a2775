// The cases of step 1's parity and how each is judged, for whichever communicator a suite brings.
// defines: dp_cases(), name_of(), expect_parity()
#pragma once

#include <gtest/gtest.h>

#include "step01_dp/tests/parity_run.h"

namespace escalera {

/// Every mode x accumulation 1, 4 x recompute x tied/untied, in float64.
std::vector<DpCase> dp_cases();
std::string name_of(const DpCase& test);

/// Judges a record by its type: float64 within 1e-10 of one process; others at most twice as far from
/// float64 at the same weights as one process of that type, plus 1e-6 (float32) or 2^-8 (bfloat16).
void expect_parity(const RunRecord& record, const DpCase& test);

}  // namespace escalera
