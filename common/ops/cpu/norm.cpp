#include <algorithm>

#include "common/ops/checks.h"
#include "common/ops/cpu/cpu_ops.h"
#include "common/ops/cpu/tensor_access.h"

namespace escalera::cpu {

void CpuOps::rms_norm_forward(const Tensor& x, const Tensor& w, double epsilon, const Tensor& y, const Tensor& rstd) {
  add_rms_norm_forward(x, Tensor(), w, epsilon, Tensor(), y, rstd);
}

void CpuOps::add_rms_norm_forward(const Tensor& x, const Tensor& delta, const Tensor& w, double epsilon,
                                  const Tensor& sum, const Tensor& y, const Tensor& rstd) {
  const Index rows = x.rows(), columns = x.columns();
  check_rms_norm(x, w, y, rstd);
  if (!delta.empty()) check_add_rms_norm(x, delta, sum);
  dispatch(x.dtype(), [&]<class T>() {
    const auto *from = raw<T>(x), *added = raw<T>(delta);
    auto* total = raw<T>(sum);
    parallel(rows, 2 * columns, [&](Index begin, Index end, int) {
      const Index start = begin * columns;
      table<T>().rms_norm_forward(from + start, added ? added + start : nullptr, raw<T>(w),
                                  static_cast<Accumulator<T>>(epsilon), total ? total + start : nullptr,
                                  raw<T>(y) + start, raw<Accumulator<T>>(rstd) + begin, end - begin, columns);
    });
  });
}

void CpuOps::rms_norm_apply(const Tensor& x, const Tensor& rstd, const Tensor& w, const Tensor& y) {
  check_rms_norm(x, w, y, rstd);
  const Index columns = x.columns();
  dispatch(x.dtype(), [&]<class T>() {
    parallel(x.rows(), columns, [&](Index begin, Index end, int) {
      table<T>().rms_norm_apply(raw<T>(x) + begin * columns, raw<Accumulator<T>>(rstd) + begin, raw<T>(w),
                                raw<T>(y) + begin * columns, end - begin, columns);
    });
  });
}

void CpuOps::rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& w,
                               const Tensor& residual, const Tensor& dx, const Tensor& dw) {
  const Index rows = x.rows(), columns = x.columns();
  check_rms_norm(x, w, dy, rstd);
  check_rms_norm_backward(x, residual, dx, dw);
  if (rows == 0) return;

  // dw sums over all rows. Each block of rows has a sum of its own, and the sums are added in order of the blocks; blocks
  // depend on the number of rows alone, so the result has the same bits for any number of threads. Sums of sums also round
  // less than one long sum.
  constexpr Index most_blocks = 64, fewest_rows = 16;
  const Index block_rows = std::max(fewest_rows, (rows + most_blocks - 1) / most_blocks);
  const Index blocks = (rows + block_rows - 1) / block_rows;
  dispatch(x.dtype(), [&]<class T>() {
    using Wide = Accumulator<T>;
    Wide* partial = scratch<Wide>(blocks * columns);
    const auto* past = raw<T>(residual);
    parallel(blocks, 4 * block_rows * columns, [&](Index begin, Index end, int) {
      for (Index i = begin; i < end; i++) {
        const Index first = i * block_rows, count = std::min(block_rows, rows - first), start = first * columns;
        std::fill_n(partial + i * columns, columns, Wide(0));
        table<T>().rms_norm_backward(raw<T>(dy) + start, raw<T>(x) + start, raw<Wide>(rstd) + first, raw<T>(w),
                                     past ? past + start : nullptr, raw<T>(dx) + start, partial + i * columns, count,
                                     columns);
      }
    });
    for (Index i = 1; i < blocks; i++) table<Wide>().accumulate(partial + i * columns, partial, columns);
    table<Wide>().accumulate(partial, raw<Wide>(dw), columns);
  });
}

}  // namespace escalera::cpu
