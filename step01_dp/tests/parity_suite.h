// The cases of step 1's parity and how each is judged, for whichever communicator a suite brings.
// defines: dp_cases(), name_of(), reference(), expect_parity()
#pragma once

#include <gtest/gtest.h>

#include "step01_dp/tests/parity_run.h"

namespace escalera {

/// Every mode x accumulation 1, 4 x recompute x tied/untied, in float64.
std::vector<DpCase> dp_cases();
std::string name_of(const DpCase& test);

/// One process with the same batch and model.
const RunRecord& reference(const DpCase& test);
/// Judges rank 0's record by the rule of tests/support/parity_layout.h; with all ranks' records, also that they have the same losses
/// and norms.
/// @{
void expect_parity(const RunRecord& record, const DpCase& test);
void expect_parity(const std::vector<RunRecord>& records, const DpCase& test);
/// @}

}  // namespace escalera
