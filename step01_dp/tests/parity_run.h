// One parity run of step 1, on any communicator; shared by the threads and the MPI suite.
// defines: DpCase, Fault, run_case()
#pragma once

#include "step01_dp/data_parallel.h"
#include "tests/support/parity_layout.h"

namespace escalera {

/// A fault that the suite plants to see that it would be noticed.
enum class Fault {
  none,
  averaged,           ///< the sum is divided by the number of ranks, although the loss is scaled for the global batch
  local_mean,         ///< each rank divides by the number of its own targets, and the sum by the number of ranks
  wrong_micro_batch,  ///< gradients are reduced after the first micro-batch instead of the last
  dropped_gradient,   ///< one weight's gradient is not reduced
};

/// A layout and mode of step 1.
struct DpCase {
  DpMode mode = DpMode::overlapped;
  Index bucket_bytes = 0;
  Index accumulation = 1;
  Recompute recompute = Recompute::none;
  bool tied = false;
  DType dtype = DType::float64;
  DType rounding = DType::float64;  ///< of the initial weights
  Fault fault = Fault::none;
};

/// The parity run on the parity model (run_parity() in tests/support/parity_layout.h), spread over `group`, which has all ranks of
/// `world` and carries tensors of `ops`. Without these the CPU computes.
/// @{
RunRecord run_case(Communicator& world, Communicator& group, Ops& ops, const DpCase& test, Trace* trace = nullptr);
RunRecord run_case(Communicator& world, const DpCase& test, Trace* trace = nullptr);
/// @}

}  // namespace escalera
