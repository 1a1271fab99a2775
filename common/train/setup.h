// From options to the objects of a run.
// defines: make_ops(), optimizer_settings(), validation_fraction()
#pragma once

#include <memory>

#include "common/ops/ops.h"
#include "common/optim/optimizer.h"
#include "common/train/options.h"

namespace escalera {

/// The backend that validated options ask for, with its memory limit set.
std::unique_ptr<Ops> make_ops(const TrainOptions& options);

/// What the optimizer needs of the options.
OptimizerSettings optimizer_settings(const TrainOptions& options);

/// The share of the text that is held out: a twentieth with --eval-every, nothing without.
double validation_fraction(const TrainOptions& options);

}  // namespace escalera
