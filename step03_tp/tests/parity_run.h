// One parity run of step 3, on any communicator and device; shared by the suites.
// defines: TpCase, Fault, tp_model(), run_case(), on_ranks(), tp_cases(), pairwise_tp_cases(), name_of()
#pragma once

#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "step03_tp/tensor_parallel.h"
#include "tests/support/parity_layout.h"

namespace escalera {

/// A fault that the suite plants to see that it would be noticed.
enum class Fault {
  none,
  norm_not_summed,     ///< sequence parallel: norms keep the gradient of their own rows
  norm_summed,         ///< plain: norms are summed although every rank has the whole gradient
  kv_not_summed,       ///< t > kv heads: each rank keeps the gradient that its own queries cause
  replicated_counted,  ///< what all ranks hold counts in the norm on each of them
  padding_in_softmax,  ///< padded vocabulary rows take part in the sum of exponentials
};

/// A layout and mode of step 3.
struct TpCase {
  int tp = 2, dp = 1;
  bool sequence_parallel = false, overlap = false;
  bool tied = false;
  Index kv_heads = 2;
  Index vocabulary = 257;
  Recompute recompute = Recompute::none;
  Index accumulation = 1;
  DType dtype = DType::float64;
  DType rounding = DType::float64;  ///< of the initial weights
  Fault fault = Fault::none;

  int ranks() const { return tp * dp; }
  /// Of the global batch; fewer where each logit row is long.
  Index sequences() const { return vocabulary > 1000 ? 8 : 24; }
};

/// The parity model with heads for 8 ranks: 8 heads of 6 columns in a stream of 40, so that queries are wider than the stream,
/// and 72 = 8 * 9 feed-forward columns. With 8 key/value heads no head is shared, with 2 and 1 up to 8 ranks share one.
ModelConfig tp_model(const TpCase& test);

/// Two steps of SGD with clipping, spread over the tp * dp ranks of `world`; `tensors`, the same ranks, carries tensors of `ops`.
/// Without them the CPU computes. Gradients and weights are recorded on rank 0.
/// @{
RunRecord run_case(Communicator& world, Communicator& tensors, Ops& ops, const TpCase& test,
                   Trace* trace = nullptr);
RunRecord run_case(Communicator& world, const TpCase& test, Trace* trace = nullptr);
/// @}
/// The same on threads of this process.
RunRecord run_on_threads(const TpCase& test);

/// Runs `body` on `ranks` threads, each with operations of its own whose new memory is poisoned; fails the test if it throws.
void on_ranks(int ranks, const std::function<void(Communicator& world, Ops& ops)>& body);

/// t = 2, 4, 8 x sequence parallelism x overlap x tied/untied x kv heads 1, 2, 8 x vocabulary 256, 257, 50257, with dp,
/// recompute and accumulation changing from case to case.
std::vector<TpCase> tp_cases();
/// Few cases in which each two choices of any two of all these settings (dp, recompute and accumulation too) occur together:
/// of all cases, or of those for `ranks` ranks.
std::vector<TpCase> pairwise_tp_cases(std::optional<int> ranks = {});
std::string name_of(const TpCase& test);
/// What GoogleTest prints of a case.
inline void PrintTo(const TpCase& test, std::ostream* out) { *out << name_of(test); }

/// Judges the record by the rule for its type, see expect_parity().
void expect_parity(const RunRecord& record, const TpCase& test);

}  // namespace escalera
