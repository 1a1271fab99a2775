// A case of step 2 on threads of one process, and how it is judged.
// defines: run_on_threads(), expect_predicted_everywhere(), expect_case()
#pragma once

#include <vector>

#include "common/comm/launch.h"
#include "step02_fsdp/tests/sharded_run.h"

namespace escalera {

/// The results of all ranks.
std::vector<ShardedResult> run_on_threads(const ShardedCase& test);

/// Memory of each rank and traffic of all are what the formulas say.
void expect_predicted_everywhere(const std::vector<ShardedResult>& results, const ShardedCase& test);

/// Runs it; numbers are those of one process, and memory and traffic those of the formulas.
void expect_case(const ShardedCase& test);

}  // namespace escalera
