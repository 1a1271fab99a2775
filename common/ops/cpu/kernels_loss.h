// Kernels of the cross-entropy over a slice of the vocabulary.
#pragma once

#include "common/ops/cpu/simd.h"

namespace escalera::cpu {
namespace {

/// The place of a target in this slice, or -1 if it is masked or held elsewhere.
ESCALERA_INLINE Index local_target(std::int32_t target, LogitColumns columns) {
  const Index place = target - columns.first;
  return target >= 0 && place >= 0 && place < columns.valid ? place : -1;
}

template <class T, class Wide>
void logit_row_max(const T* logits, LogitColumns columns, Wide* row_max, Index rows) {
  const Vec<Wide> lowest = splat(-static_cast<Wide>(__builtin_inf()));
  for (Index row = 0; row < rows; row++, logits += columns.stride) {
    Vec<Wide> largest = lowest;
    Index i = 0;
    for (; i + lanes<Wide> <= columns.valid; i += lanes<Wide>) largest = larger<Wide>(load<Wide>(logits + i), largest);
    Wide result = horizontal_max<Wide>(largest);
    for (; i < columns.valid; i++) {  // one by one: the zeros that pad a Part would count as logits
      const Wide value = load<Wide>(logits + i, Part{1})[0];
      result = value > result ? value : result;
    }
    row_max[row] = result;
  }
}

template <class T, class Wide>
void logit_row_sums(const T* logits, LogitColumns columns, const std::int32_t* targets, const Wide* row_max,
                    Wide* exponentials, Wide* target_logits, Index rows) {
  for (Index row = 0; row < rows; row++, logits += columns.stride) {
    const Wide largest = row_max[row];
    Vec<Wide> sum{};
    Index i = 0;
    for (; i + lanes<Wide> <= columns.valid; i += lanes<Wide>) sum += exp<Wide>(load<Wide>(logits + i) - largest);
    if (i < columns.valid) {
      // Subtracting infinity from the lanes beyond the end makes their exponentials zero.
      const Part part{columns.valid - i};
      Vec<Wide> beyond{};
      for (int lane = 0; lane < lanes<Wide>; lane++) {
        if (lane >= part.count) beyond[lane] = static_cast<Wide>(__builtin_inf());
      }
      sum += exp<Wide>(load<Wide>(logits + i, part) - largest - beyond);
    }
    exponentials[row] = horizontal_sum<Wide>(sum);
    const Index target = local_target(targets[row], columns);
    target_logits[row] = target < 0 ? 0 : load<Wide>(logits + target, Part{1})[0] - largest;
  }
}

template <class T, class Wide>
void logit_gradient(T* logits, LogitColumns columns, const std::int32_t* targets, const Wide* row_max,
                    const Wide* exponentials, Wide scale, Index rows) {
  for (Index row = 0; row < rows; row++, logits += columns.stride) {
    if (targets[row] < 0) {
      __builtin_memset(logits, 0, static_cast<std::size_t>(columns.stride) * sizeof(T));
      continue;
    }
    const Wide largest = row_max[row];
    const Wide inverse = static_cast<Wide>(1) / exponentials[row];
    const Index target = local_target(targets[row], columns);
    // The target's probability, before its logit is overwritten: softmax - 1 is formed before rounding to T.
    const Wide hit = target < 0 ? 0 : exp_of_one<Wide>(load<Wide>(logits + target, Part{1})[0] - largest) * inverse;
    const Wide factor = inverse * scale;
    for_lanes<Wide>(columns.valid, [&](Index i, auto lanes) __attribute__((always_inline)) {
      store<Wide>(logits + i, exp<Wide>(load<Wide>(logits + i, lanes) - largest) * factor, lanes);
    });
    if (target >= 0) store<Wide>(logits + target, splat((hit - static_cast<Wide>(1)) * scale), Part{1});
    __builtin_memset(logits + columns.valid, 0, static_cast<std::size_t>(columns.stride - columns.valid) * sizeof(T));
  }
}

}  // namespace
}  // namespace escalera::cpu
