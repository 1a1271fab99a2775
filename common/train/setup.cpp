#include "common/train/setup.h"

#include "common/comm/local_rank.h"
#include "common/cuda/cuda_backend.h"

namespace escalera {

Placement::Placement(Communicator& world, const TrainOptions& options, Trace& trace) : world_(world) {
  if (options.device == DeviceKind::cuda) {
    place_on_gpus(options, trace);
  } else {
    ops_ = make_cpu_ops({.threads = options.threads.value()});
  }
  ops_->device().memory().set_limit(options.memory_limit);
}

// The n-th rank of a host takes its n-th GPU; with more ranks than GPUs they start again at the first.
void Placement::place_on_gpus(const TrainOptions& options, Trace& trace) {
  CudaBackend& backend = cuda_backend();
  const int local = local_rank(world_), gpus = backend.device_count();
  ops_ = backend.make_ops(local % gpus);
  if (world_.size() == 1) return;

  const bool shared = world_.sum(Index{local >= gpus}) > 0;
  const bool nccl_reaches_all = !backend.is_simulated() || options.launcher == CommKind::threads;
  require<UsageError>(options.comm != CommChoice::nccl || nccl_reaches_all,
                      "--comm nccl: simulated NCCL connects threads of one process; without the launcher use --comm nccl "
                      "--ranks {}, or with it --comm mpi",
                      world_.size());
  if (options.comm == CommChoice::nccl || (options.comm == CommChoice::automatic && !shared && nccl_reaches_all)) {
    tensors_ = backend.make_nccl_communicator(world_, *ops_);  // refuses ranks that share a GPU
    communication_ = "nccl, one GPU per rank";
  } else {
    tensors_ = backend.make_staged_communicator(world_, *ops_);
    staged_ = true;
    communication_ = fmt::format("{} through host memory{}", options.launcher == CommKind::threads ? "threads" : "mpi",
                                 shared ? ", ranks share GPUs" : "");
  }
  tensors_->set_trace(&trace);
}

std::vector<std::pair<std::string, std::string>> Placement::rows() const {
  std::vector<std::pair<std::string, std::string>> rows = {{"backend", ops_->description()}};
  if (!communication_.empty()) rows.emplace_back("communication", communication_);
  return rows;
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
