#include "step01_dp/tests/parity_suite.h"

#include "common/train/options.h"

namespace escalera {
std::vector<DpCase> dp_cases() {
  std::vector<DpCase> cases;
  for (const DpMode mode : {DpMode::naive, DpMode::bucketed, DpMode::overlapped}) {
    for (const Index accumulation : {1, 4}) {
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        for (const bool tied : {false, true}) {
          DpCase test;
          test.mode = mode;
          test.accumulation = accumulation;
          test.recompute = recompute;
          test.tied = tied;
          // A bucket of two to three units in half of the cases; alone in the others.
          test.bucket_bytes = recompute == Recompute::selective ? 400'000 : 0;
          cases.push_back(test);
        }
      }
    }
  }
  return cases;
}

std::string name_of(const DpCase& test) {
  return fmt::format("{}_accumulation{}_recompute_{}_{}", to_string(test.mode), test.accumulation,
                     to_string(test.recompute), test.tied ? "tied" : "untied");
}

const RunRecord& reference(const DpCase& test) {
  return parity_reference(parity_model(test.tied), test.dtype, test.rounding);
}

void expect_parity(const RunRecord& record, const DpCase& test) {
  expect_parity(record, parity_model(test.tied), test.dtype, test.rounding);
}

void expect_parity(const std::vector<RunRecord>& records, const DpCase& test) {
  expect_parity(records.front(), test);
  for (const RunRecord& record : records) {
    EXPECT_EQ(record.losses, records.front().losses);
    EXPECT_EQ(record.norms, records.front().norms);
  }
}

}  // namespace escalera
