#include "common/ops/cpu/cpu_ops.h"

#include "common/ops/cpu/attention.h"

namespace escalera {

std::unique_ptr<Ops> make_cpu_ops(const CpuSettings& settings) { return std::make_unique<cpu::CpuOps>(settings); }

namespace cpu {

CpuOps::CpuOps(const CpuSettings& settings) : CpuOps(settings, best_kernels()) {}

CpuOps::CpuOps(const CpuSettings& settings, const Kernels& kernels)
    : pool_(settings.threads), kernels_(kernels), onednn_(settings.allow_onednn && !onednn_description().empty()) {
  for (int thread = 0; thread < pool_.size(); thread++) {
    auto gemm = make_eigen_gemm(kernels_);
    gemms_.push_back(settings.allow_onednn ? make_onednn_gemm(std::move(gemm)) : std::move(gemm));
  }
}

std::string CpuOps::description() const {
  return fmt::format("CPU, {} thread{}, matrix products by {}, kernels for {}, attention in {}", pool_.size(),
                     pool_.size() == 1 ? "" : "s", onednn_ ? onednn_description() + " and Eigen" : "Eigen", kernels_.name,
                     attention_description());
}

void CpuOps::attention_forward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& out, const Tensor& lse) {
  cpu::attention_forward(pool_, device_, shape, q, k, v, out, lse);
}

void CpuOps::attention_backward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& out, const Tensor& lse, const Tensor& d_out, const Tensor& dq,
                                const Tensor& dk, const Tensor& dv) {
  cpu::attention_backward(pool_, device_, shape, q, k, v, out, lse, d_out, dq, dk, dv);
}

}  // namespace cpu
}  // namespace escalera
