#include "common/train/setup.h"

namespace escalera {

std::unique_ptr<Ops> make_ops(const TrainOptions& options) {
  std::unique_ptr<Ops> ops =
      options.device == DeviceKind::cuda ? make_cuda_ops(0) : make_cpu_ops({.threads = options.threads.value()});
  ops->device().memory().set_limit(options.memory_limit);
  return ops;
}

OptimizerSettings optimizer_settings(const TrainOptions& options) {
  OptimizerSettings settings;
  settings.kind = options.optimizer == OptimizerKind::sgd ? OptimizerSettings::Kind::sgd : OptimizerSettings::Kind::adamw;
  settings.beta1 = options.beta1;
  settings.beta2 = options.beta2;
  settings.epsilon = options.adam_epsilon;
  settings.weight_decay = options.weight_decay;
  return settings;
}

double validation_fraction(const TrainOptions& options) { return options.eval_every > 0 ? 0.05 : 0.0; }

}  // namespace escalera
