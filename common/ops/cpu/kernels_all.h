// The tables of kernels, for whichever vector width the including unit has set.
#pragma once

#include "common/ops/cpu/kernels_flat.h"
#include "common/ops/cpu/kernels_loss.h"
#include "common/ops/cpu/kernels_rows.h"

namespace escalera::cpu {
namespace {

template <class T, class Wide>
constexpr KernelTable<T, Wide> kernel_table = {
    .rms_norm_forward = rms_norm_forward<T, Wide>,
    .rms_norm_apply = rms_norm_apply<T, Wide>,
    .rms_norm_backward = rms_norm_backward<T, Wide>,
    .rope_split = rope_split<T, Wide>,
    .rope_merge = rope_merge<T, Wide>,
    .swiglu_forward = swiglu_forward<T, Wide>,
    .swiglu_backward = swiglu_backward<T, Wide>,
    .logit_row_max = logit_row_max<T, Wide>,
    .logit_row_sums = logit_row_sums<T, Wide>,
    .logit_gradient = logit_gradient<T, Wide>,
    .accumulate = accumulate<T, Wide>,
    .add = add<T, Wide>,
    .scale = scale<T, Wide>,
    .squared_norm = squared_norm<T>,
    .adamw = adamw<T, Wide>,
    .sgd = sgd<T, Wide>,
};

constexpr Kernels all_kernels(const char* name) {
  return {
      .name = name,
      .float32 = kernel_table<float, float>,
      .float64 = kernel_table<double, double>,
      .bfloat16 = kernel_table<Bits16, float>,
      .convert = {{nullptr, convert<float, double>, convert<float, Bits16>},
                  {convert<double, float>, nullptr, convert<double, Bits16>},
                  {convert<Bits16, float>, convert<Bits16, double>, nullptr}},
  };
}

}  // namespace
}  // namespace escalera::cpu
