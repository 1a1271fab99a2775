#include <cmath>

#include "common/ops/cpu/cpu_ops.h"
#include "common/ops/cpu/tensor_access.h"

namespace escalera::cpu {
namespace {

void check_logits(const Tensor& logits, Index valid_columns, const Tensor& row_max) {
  require(valid_columns >= 0 && valid_columns <= logits.columns(), "cross_entropy: {} valid columns of {}", valid_columns,
          logits.columns());
  check(row_max, 1, logits.rows(), accumulation_dtype(logits.dtype()), "cross_entropy: row_max");
}

void check_sums(const Tensor& logits, std::span<const std::int32_t> targets, const Tensor& sums) {
  require(static_cast<Index>(targets.size()) == logits.rows(), "cross_entropy: {} targets for {} rows", targets.size(),
          logits.rows());
  check(sums, 2, logits.rows(), accumulation_dtype(logits.dtype()), "cross_entropy: sums");
}

}  // namespace

void CpuOps::cross_entropy_row_max(const Tensor& logits, Index valid_columns, const Tensor& row_max) {
  check_logits(logits, valid_columns, row_max);
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
  check_logits(logits, valid_columns, row_max);
  check_sums(logits, targets, sums);
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
  check_logits(logits, valid_columns, row_max);
  check_sums(logits, targets, sums);
  check(loss, 1, 1, DType::float64, "cross_entropy_backward: loss");
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
