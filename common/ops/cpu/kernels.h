// The inner loops of everything that is not a matrix product or attention, as tables of plain functions: one table per
// instruction set, chosen when the program starts.
// defines: KernelTable, Kernels, kernels_base(), kernels_v4(), cpu_has_v4(), best_kernels()
//
// This header is also read by units compiled for AVX-512, so it may bring out no inline function (see kernels_v4.cpp): only
// plain types and pointers. There, bfloat16 appears as the 16 bits that it is stored in.
#pragma once

#include <cstdint>

#include "common/ops/adamw_factors.h"

namespace escalera {

using Index = std::int64_t;  // as in common/core/dtype.h, which this header must not include

namespace cpu {

using Bits16 = std::uint16_t;  // a bfloat16

/// Which columns a slice of the logits holds; see ops.h.
struct LogitColumns {
  Index stride, valid, first;
};

/// Loops over rows or elements for activations of type T with statistics of type Wide. Rows of a matrix follow each other
/// without gaps. Formulas and rules about overlap are those of ops.h.
template <class T, class Wide>
struct KernelTable {
  /// With `delta`: sum = x + delta is normalised and stored; without (null): x is, and sum is not touched.
  void (*rms_norm_forward)(const T* x, const T* delta, const T* w, Wide epsilon, T* sum, T* y, Wide* rstd, Index rows,
                           Index columns);
  void (*rms_norm_apply)(const T* x, const Wide* rstd, const T* w, T* y, Index rows, Index columns);
  void (*rms_norm_backward)(const T* dy, const T* x, const Wide* rstd, const T* w, const T* residual, T* dx, Wide* dw,
                            Index rows, Index columns);

  /// One token: angles holds head_size / 2 cosines and as many sines.
  void (*rope_split)(const T* qkv, const Wide* angles, T* q, T* k, T* v, Index heads, Index kv_heads, Index head_size);
  void (*rope_merge)(const T* dq, const T* dk, const T* dv, const Wide* angles, T* d_qkv, Index heads, Index kv_heads,
                     Index head_size);

  void (*swiglu_forward)(const T* gate_up, T* y, Index rows, Index columns);
  void (*swiglu_backward)(const T* gate_up, const T* dy, T* d_gate_up, T* y, Index rows, Index columns);

  void (*logit_row_max)(const T* logits, LogitColumns columns, Wide* row_max, Index rows);
  void (*logit_row_sums)(const T* logits, LogitColumns columns, const std::int32_t* targets, const Wide* row_max,
                         Wide* exponentials, Wide* target_logits, Index rows);
  void (*logit_gradient)(T* logits, LogitColumns columns, const std::int32_t* targets, const Wide* row_max,
                         const Wide* exponentials, Wide scale, Index rows);

  /// destination += source.
  void (*accumulate)(const T* source, Wide* destination, Index count);
  void (*add)(const T* a, const T* b, T* out, Index count);
  void (*scale)(T* x, Wide factor, Index count);
  double (*squared_norm)(const T* x, Index count);

  /// `weights` may be null.
  void (*adamw)(Wide* master, const Wide* gradient, Wide* first_moment, Wide* second_moment, T* weights, Index count,
                const AdamWFactors<Wide>& factors);
  void (*sgd)(Wide* master, const Wide* gradient, T* weights, Index count, Wide decay, Wide step_size);
};

/// All loops for one instruction set.
struct Kernels {
  const char* name;
  KernelTable<float, float> float32;
  KernelTable<double, double> float64;
  KernelTable<Bits16, float> bfloat16;
  /// [from][to], in the order of DType; null where both are the same type.
  void (*convert[3][3])(const void* source, void* destination, Index count);
};

/// For the instruction set of the whole build (x86-64-v3 on x86-64).
const Kernels& kernels_base();
/// For x86-64-v4, in vectors twice as wide; null where it was not built. Ask cpu_has_v4() before calling into it.
const Kernels* kernels_v4();
/// Whether this processor runs *_v4.cpp units.
bool cpu_has_v4();
/// The widest that this processor runs.
const Kernels& best_kernels();

}  // namespace cpu
}  // namespace escalera
