#include "step01_dp/tests/parity_suite.h"

#include <map>
#include <mutex>

#include "common/train/options.h"

namespace escalera {
namespace {

// References are computed once per kind: they cost as much as a case.
const RunRecord& reference(const DpCase& test) {
  static std::mutex mutex;
  static std::map<std::tuple<bool, DType, DType>, RunRecord> all;
  std::lock_guard lock(mutex);
  auto [place, is_new] = all.try_emplace({test.tied, test.dtype, test.rounding});
  if (is_new) place->second = run_reference(test);
  return place->second;
}

}  // namespace

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

void expect_parity(const RunRecord& record, const DpCase& test) {
  if (test.dtype == DType::float64) {
    const LargestError error = largest_error(record, reference(test));
    EXPECT_LT(error.value, 1e-10) << error.where;
    return;
  }
  DpCase exact = test;
  exact.dtype = DType::float64;
  const RunRecord& truth = reference(exact);
  const RunRecord& one = reference(test);
  const double slack = test.dtype == DType::float32 ? 1e-6 : 1.0 / 256;
  for (std::size_t step = 0; step < truth.gradients.size(); step++) {
    EXPECT_LE(std::abs(record.losses[step] - truth.losses[step]),
              2 * std::abs(one.losses[step] - truth.losses[step]) + slack * truth.losses[step]);
    for (const auto& [name, values] : truth.gradients[step]) {
      EXPECT_LE(relative_error(record.gradients[step].at(name), values),
                2 * relative_error(one.gradients[step].at(name), values) + slack)
          << "gradient of " << name << " in step " << step + 1;
    }
  }
  for (const auto& [name, values] : truth.weights) {
    EXPECT_LE(relative_error(record.weights.at(name), values), 2 * relative_error(one.weights.at(name), values) + slack)
        << name;
  }
}

}  // namespace escalera
