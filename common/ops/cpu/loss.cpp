#include <cmath>

#include "common/ops/checks.h"
#include "common/ops/cpu/cpu_ops.h"
#include "common/ops/cpu/tensor_access.h"

namespace escalera::cpu {

void CpuOps::cross_entropy_row_max(const Tensor& logits, Index valid_columns, const Tensor& row_max) {
  check_cross_entropy_row_max(logits, valid_columns, row_max);
  const LogitColumns columns{logits.columns(), valid_columns, 0};
  dispatch(logits.dtype(), [&]<class T>() {
    parallel(logits.rows(), columns.stride, [&](Index begin, Index end, int) {
      table<T>().logit_row_max(raw<T>(logits) + begin * columns.stride, columns, raw<Accumulator<T>>(row_max) + begin,
                               end - begin);
    });
  });
}

void CpuOps::cross_entropy_row_sums(const Tensor& logits, Index valid_columns, std::span<const std::int32_t> targets,
                                    Index first_column, const Tensor& row_max, const Tensor& sums) {
  check_cross_entropy_row_sums(logits, valid_columns, targets, row_max, sums);
  const LogitColumns columns{logits.columns(), valid_columns, first_column};
  dispatch(logits.dtype(), [&]<class T>() {
    auto* exponentials = raw<Accumulator<T>>(sums);
    parallel(logits.rows(), cost_of_exp * columns.stride, [&](Index begin, Index end, int) {
      table<T>().logit_row_sums(raw<T>(logits) + begin * columns.stride, columns, targets.data() + begin,
                                raw<Accumulator<T>>(row_max) + begin, exponentials + begin,
                                exponentials + logits.rows() + begin, end - begin);
    });
  });
}

void CpuOps::cross_entropy_backward(const Tensor& logits, Index valid_columns, std::span<const std::int32_t> targets,
                                    Index first_column, const Tensor& row_max, const Tensor& sums, double scale,
                                    double loss_share, const Tensor& loss) {
  check_cross_entropy_backward(logits, valid_columns, targets, row_max, sums, loss);
  const LogitColumns columns{logits.columns(), valid_columns, first_column};
  dispatch(logits.dtype(), [&]<class T>() {
    using Wide = Accumulator<T>;
    const Wide* exponentials = raw<Wide>(sums);
    const Wide* target_logits = exponentials + logits.rows();
    parallel(logits.rows(), cost_of_exp * columns.stride, [&](Index begin, Index end, int) {
      table<T>().logit_gradient(raw<T>(logits) + begin * columns.stride, columns, targets.data() + begin,
                                raw<Wide>(row_max) + begin, exponentials + begin, static_cast<Wide>(scale), end - begin);
    });
    // One logarithm per token is nothing beside the vocabulary's exponentials, and one thread keeps the sum in order.
    double total = 0;
    for (Index t = 0; t < logits.rows(); t++) {
      if (targets[static_cast<std::size_t>(t)] < 0) continue;
      total += std::log(static_cast<double>(exponentials[t])) - static_cast<double>(target_logits[t]);
    }
    *loss.as<double>() += scale * loss_share * total;
  });
}

}  // namespace escalera::cpu
