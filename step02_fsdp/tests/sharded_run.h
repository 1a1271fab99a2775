// One parity run of step 2, on any communicator, and what it needed; shared by the threads, MPI and CUDA suites.
// defines: sharded_model(), ShardedCase, Fault, ShardedResult, run_case(), formulas_of(), name_of(), sharded_cases(), pairwise_cases()
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "step02_fsdp/formulas.h"
#include "tests/support/parity_layout.h"

namespace escalera {

/// The parity model with sizes that no number of ranks divides: hardly a bucket comes out without padding, and parts begin at odd
/// places.
ModelConfig sharded_model(bool tied);

/// A fault that the suite plants to see that it would be noticed.
enum class Fault {
  none,
  shifted_shard,         ///< shards begin one element too early
  overwritten_gradient,  ///< the gradient shard forgets the earlier micro-batches
  never_released,        ///< gathered weights stay
  replicas_left_out,     ///< gradients are summed over the shard group only
};

/// A layout and mode of step 2.
struct ShardedCase {
  int ranks = 2;
  int shards = 2;  ///< ranks of a shard group
  ShardingSettings sharding;
  Index accumulation = 1;
  Recompute recompute = Recompute::none;
  bool tied = false;
  DType dtype = DType::float64;
  DType rounding = DType::float64;  ///< of the initial weights
  Fault fault = Fault::none;

  /// Of a step: 48 unless that many cannot be dealt out evenly.
  Index sequences() const { return parity_sequences % (ranks * accumulation) == 0 ? parity_sequences : 72; }
};

/// What a run gave and what it took.
struct ShardedResult {
  RunRecord record;
  /// Most bytes on this rank.
  /// @{
  Index parameters = 0, gradients = 0, optimizer = 0, communication = 0, gathered = 0;
  /// @}
  Index gathered_units = 0;
  TrafficPrediction traffic;  ///< bytes that this rank sent
};

/// Two steps of SGD with clipping on the parity model. `world` carries host memory, `tensors` (the same ranks) those of `ops`.
/// Without them the CPU computes.
/// @{
ShardedResult run_case(Communicator& world, Communicator& tensors, Ops& ops, const ShardedCase& test,
                       Trace* trace = nullptr);
ShardedResult run_case(Communicator& world, const ShardedCase& test, Trace* trace = nullptr);
/// @}

/// What the chapter's formulas read of a case.
ShardedRun formulas_of(const ShardedCase& test);

/// Fails the test unless memory is what the formulas say on this rank, and the sum of `traffic` over all ranks is what they say for
/// two steps. `staged`: tensors travel through host memory, which comes on top.
void expect_predicted(const ShardedResult& result, const TrafficPrediction& all_ranks,
                      const ShardedCase& test, bool staged = false);

/// How a test names its case where it fails.
void PrintTo(const ShardedCase& test, std::ostream* out);
/// "dp4_shards2_zero3_prefetch1_accumulation3_..."
std::string name_of(const ShardedCase& test);

/// Every number of ranks x shard size that divides it x stage x prefetch 0, 1, 3 x accumulation 1, 3 x reshard x recompute x
/// tied/untied, in float64, where they make a difference.
std::vector<ShardedCase> all_cases(const std::vector<int>& ranks);
/// Few of them, such that any two choices that occur together in all_cases() do so here.
std::vector<ShardedCase> pairwise_cases(const std::vector<int>& ranks);

}  // namespace escalera
